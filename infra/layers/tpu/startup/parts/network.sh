# shellcheck shell=bash
# network: check that Cloud Storage answers, and compare the MTU with the network's.

stage_network() {
  local code device mtu expected
  authorize || try_again "the metadata server gives no token of the attached service account"
  # Any answer is enough: later stages find out about permissions.
  code=$(gcs_get 'o?maxResults=1&fields=kind' "$RUN/network.answer")
  [[ $code != 000 ]] || try_again "no answer from $STORAGE: does the subnet have Private Google Access, or the network a NAT?"
  log "Cloud Storage answers (HTTP $code)"

  device=$(awk '$2 == "00000000" { print $1; exit }' /proc/net/route)
  [[ -n $device ]] || { log "no default route, so no MTU to compare"; return; }
  mtu=$(cat "/sys/class/net/$device/mtu")
  expected=$(metadata instance/network-interfaces/0/mtu) || expected=$mtu
  log "MTU of $device is $mtu"
  [[ $mtu == "$expected" ]] || log "warning: the network's MTU is $expected; slices are slower with $mtu"
}

# shellcheck shell=bash
# identity: who this host is, from the metadata server, into $RUN/node.

# remember NAME VALUE: for the status and for the later stages.
remember() { printf 'export %s=%q\n' "$1" "$2" >>"$RUN/node"; }

# attribute KEY NAME PATTERN: remembers a required attribute, which must match PATTERN, as NAME.
attribute() {
  optional "$1" || fail "the node's metadata has no '$1': was the node made by the tpu stack?"
  [[ $VALUE =~ ^($3)$ ]] || fail "the node's metadata has $1='$VALUE', which doesn't match $3"
  remember "$2" "$VALUE"
}

# member: the node's number in its fleet, if it is of one.
member() {
  ! optional tpu-member || attribute tpu-member TPU_MEMBER '0|[1-9][0-9]{0,3}'
}

# soon KEY: like optional, for what the TPU's own agent writes, which may come after this script's start.
soon() {
  local deadline=$((SECONDS + 6))
  until optional "$1"; do
    ((SECONDS < deadline)) || return 1
    log "waiting for $1"
    sleep 1
  done
}

stage_identity() {
  local deadline=$((SECONDS + 60)) id workers worker address
  until id=$(metadata instance/id); do
    ((SECONDS < deadline)) || fail "the metadata server didn't answer for 60 s"
    sleep 1
  done
  rm -f "$RUN/node"
  remember INSTANCE_ID "$id"
  attribute tpu-bucket CHECKPOINT_BUCKET '[a-z0-9][a-z0-9._-]*'
  ! optional tpu-steps-bucket || attribute tpu-steps-bucket STEPS_BUCKET '[a-z0-9][a-z0-9._-]*'
  attribute tpu-slice TPU_NAME '[a-z][a-z0-9-]*'
  attribute tpu-bundle TPU_BUNDLE '[0-9a-f]{64}'
  attribute tpu-zone TPU_ZONE '[a-z0-9-]+'
  attribute accelerator-type ACCELERATOR_TYPE '[a-z0-9-]+'
  member
  attribute tpu-workers WORKER_COUNT '[1-9][0-9]{0,4}'
  workers=$VALUE

  # Worker 0 leads: a host that doesn't know its number must never take it by default.
  soon agent-worker-number ||
    fail "the metadata has no agent-worker-number: this host can't know which worker of $workers it is, and stops"
  worker=$VALUE
  [[ $worker =~ ^(0|[1-9][0-9]{0,4})$ ]] || fail "agent-worker-number is '$worker', not a number: this host stops"
  ((worker < workers)) || fail "agent-worker-number is $worker, but tpu-workers is $workers: this host stops"
  remember WORKER_ID "$worker"

  # unknown:unknown:IP, one for each worker, in their order.
  soon worker-network-endpoints || fail "the metadata has no worker-network-endpoints"
  address=${VALUE%%,*}
  address=${address##*:}
  [[ $address =~ ^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$ ]] ||
    fail "worker-network-endpoints starts with '${VALUE%%,*}', not with unknown:unknown:IP"
  # JAX's coordinator: 8476 here on every version; the firewall opens it.
  remember COORDINATOR_ADDRESS "$address:8476"
  log "worker $worker of $workers, coordinator $address:8476"
}

#!/usr/bin/env bash
# The boot of a TPU host, at every boot, on every host of a slice.
#
# Idempotent: a second run finds everything done. It reads all differences between hosts
# from the metadata server, so its bytes are the same everywhere, and it needs only Debian's
# or Ubuntu's essential packages, curl and systemd. docs/internals/boot.md describes each stage.
set -euo pipefail
shopt -s inherit_errexit
umask 022
export LC_ALL=C HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin

export METADATA=http://metadata.google.internal/computeMetadata/v1
export STORAGE=https://storage.googleapis.com LOGGING=https://logging.googleapis.com
export RUN=/run/tpu LOG=/var/log/tpu/boot.log VALUE=

# Exit codes of a stage beside "done" and "failed".
export TRY_AGAIN=75 SKIPPED=77

log() { printf 'tpu-boot: %s\n' "$*" >&2; }

# End a stage: failed for good, to be retried, or with nothing to do.
fail() { log "error: $*"; exit 1; }
try_again() { log "not yet: $*"; exit "$TRY_AGAIN"; }
skip() { log "skipped: $*"; exit "$SKIPPED"; }

# metadata KEY: print the value. Status 1: the key doesn't exist;
# status 2: no definite answer within 15 s.
metadata() {
  local reply
  # --fail omits the bodies of errors, which the output of a retry would follow in the value.
  reply=$(curl --silent --fail --max-time 5 --retry 3 --retry-connrefused --retry-max-time 10 \
    --write-out '\n%{http_code}' --header 'Metadata-Flavor: Google' "$METADATA/$1") || (($? == 22)) || return 2
  case ${reply##*$'\n'} in
    200) printf '%s' "${reply%$'\n'*}" ;;
    404) return 1 ;;
    *) return 2 ;;
  esac
}

# optional KEY: put an attribute of the node into VALUE. Status 1 only if it certainly
# doesn't exist: a server that doesn't answer never turns an option off.
optional() {
  local code=0
  VALUE=$(metadata "instance/attributes/$1") || code=$?
  ((code != 2)) || try_again "the metadata server gives no answer for '$1'"
  return "$code"
}

# authorize: write a fresh token of the attached service account as a header to a file
# that only root reads, so that it is never in a process list.
authorize() {
  local reply
  reply=$(metadata instance/service-accounts/default/token) || return 1
  [[ $reply =~ \"access_token\"\ *:\ *\"([^\"]+)\" ]] || return 1
  (umask 077 && printf 'Authorization: Bearer %s\n' "${BASH_REMATCH[1]}" >"$RUN/authorization.new")
  mv "$RUN/authorization.new" "$RUN/authorization"
}

# gcs_curl ARGUMENT...: run curl with the token, timeouts for a server that hangs, and three retries.
gcs_curl() {
  curl --silent --show-error --connect-timeout 5 --speed-limit 1000 --speed-time 20 --retry 3 --retry-connrefused \
    --header "@$RUN/authorization" "$@"
}

# gcs_get PATH FILE: GET $STORAGE/storage/v1/b/BUCKET/PATH into FILE; print the HTTP status, 000
# without an answer. FILE must not be a device: curl truncates it before a retry.
gcs_get() {
  gcs_curl --output "$2" --write-out '%{http_code}' "$STORAGE/storage/v1/b/$CHECKPOINT_BUCKET/$1" || true
}

# object PATH: print the API's path of an object, whose name is an escaped segment.
object() { printf 'o/%s' "${1//\//%2F}"; }

# disk_is_full: check that the boot disk has no room for a boot's files, and log the free space.
disk_is_full() {
  local free_mib
  free_mib=$(df --output=avail --block-size=1M / | tail --lines=1)
  ((free_mib < 64)) || return 1
  log "error: the boot disk is full: ${free_mib// /} MiB of / are free, and a boot needs 64: make room, or replace the host"
}

# write_file FILE: replace FILE by stdin, atomically and only if it differs; print "changed" then.
write_file() {
  mkdir -p "$(dirname "$1")"
  cat >"$1.new"
  if [[ -f $1 ]] && cmp --silent "$1" "$1.new"; then
    rm "$1.new"
    return
  fi
  mv "$1.new" "$1"
  echo changed
}

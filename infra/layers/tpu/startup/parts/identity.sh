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

# awaited KEY LIMIT_S CHECK...: puts into VALUE what Google, and not the node's maker, writes: the TPU's own agent
# may do so after this script's start, and hosts start while others of their slice are still being made. Status 1
# where CHECK doesn't accept it until this script is LIMIT_S old; a server that doesn't answer is asked again.
awaited() {
  local said_s=-60
  until VALUE=$(metadata "instance/attributes/$1") && [[ -n $VALUE ]] && "${@:3}"; do
    ((SECONDS < $2)) || return 1
    if ((SECONDS - said_s >= 60)); then
      log "waiting for $1, at most $2 s${VALUE:+; it is ${VALUE:0:80}}"
      said_s=$SECONDS
    fi
    sleep 1
  done
}

# of_all WORKERS: VALUE has an address of each worker. A slice is whole when it has: that a node is READY only the
# TPU API says, which hosts have no right to ask.
of_all() {
  local -a endpoints
  IFS=, read -ra endpoints <<<"$VALUE"
  ((${#endpoints[@]} >= $1)) && [[ $VALUE =~ ^([^,]*:[0-9]+(\.[0-9]+){3},?)+$ ]]
}

stage_identity() {
  local deadline=$((SECONDS + 60)) id workers worker limit_s endpoints address
  until id=$(metadata instance/id); do
    ((SECONDS < deadline)) || fail "the metadata server didn't answer for 60 s"
    sleep 1
  done
  rm -f "$RUN/node"
  remember INSTANCE_ID "$id"
  attribute tpu-bucket CHECKPOINT_BUCKET '[a-z0-9][a-z0-9._-]*'
  ! optional tpu-steps-bucket || attribute tpu-steps-bucket STEPS_BUCKET '[a-z0-9][a-z0-9._-]*'
  attribute tpu-slice TPU_NAME '[a-z][a-z0-9-]*'
  attribute tpu-zone TPU_ZONE '[a-z0-9-]+'
  member
  ! optional tpu-checkpoint-folder || attribute tpu-checkpoint-folder CHECKPOINT_FOLDER '[A-Za-z0-9][A-Za-z0-9._/-]{0,199}'
  attribute tpu-workers WORKER_COUNT '[1-9][0-9]{0,4}'
  workers=$VALUE
  optional tpu-metadata-timeout-s || VALUE=3600
  [[ $VALUE =~ ^[1-9][0-9]{0,5}$ ]] || fail "the node's metadata has tpu-metadata-timeout-s='$VALUE', not a number of seconds"
  limit_s=$VALUE

  awaited accelerator-type "$limit_s" true || fail "the metadata has no accelerator-type after $limit_s s"
  attribute accelerator-type ACCELERATOR_TYPE '[a-z0-9-]+'
  # Worker 0 leads: a host that doesn't know its number must never take it by default.
  awaited agent-worker-number "$limit_s" true ||
    fail "the metadata has no agent-worker-number after $limit_s s: this host can't know which worker of $workers it is, and stops"
  worker=$VALUE
  [[ $worker =~ ^(0|[1-9][0-9]{0,4})$ ]] || fail "agent-worker-number is '$worker', not a number: this host stops"
  ((worker < workers)) || fail "agent-worker-number is $worker, but tpu-workers is $workers: this host stops"
  remember WORKER_ID "$worker"

  # unknown:unknown:IP, one for each worker, in their order.
  awaited worker-network-endpoints "$limit_s" of_all "$workers" ||
    fail "worker-network-endpoints is '${VALUE:0:80}' after $limit_s s, not unknown:unknown:IP of each of $workers workers"
  endpoints=${VALUE//[!,]/}
  ((${#endpoints} + 1 == workers)) ||
    fail "worker-network-endpoints names $((${#endpoints} + 1)) workers, but tpu-workers is $workers: this host stops"
  address=${VALUE%%,*}
  address=${address##*:}
  remember COORDINATOR "$address"
  log "worker $worker of $workers, coordinator $address"
}

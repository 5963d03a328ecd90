# shellcheck shell=bash
# identity: write this host's identity, from the metadata server, to $RUN/node.

# remember NAME VALUE: export a variable to the status and to later stages.
remember() { printf 'export %s=%q\n' "$1" "$2" >>"$RUN/node"; }

# attribute KEY NAME PATTERN: remember a required attribute, which must match PATTERN, as NAME.
attribute() {
  optional "$1" || fail "the node's metadata has no '$1': was the node made by the tpu stack?"
  [[ $VALUE =~ ^($3)$ ]] || fail "the node's metadata has $1='$VALUE', which doesn't match $3"
  remember "$2" "$VALUE"
}

# member: remember the node's number in its fleet, if any.
member() {
  ! optional tpu-member || attribute tpu-member TPU_MEMBER '0|[1-9][0-9]{0,3}'
}

# awaited KEY LIMIT_S CHECK...: put an attribute that Google writes into VALUE. The TPU's agent may write it after
# this script's start, and hosts start while others of their slice are still being created. Status 1 if CHECK
# doesn't accept it until this script is LIMIT_S old; a server that doesn't answer is queried again.
awaited() {
  local logged_s=-60
  until VALUE=$(metadata "instance/attributes/$1") && [[ -n $VALUE ]] && "${@:3}"; do
    ((SECONDS < $2)) || return 1
    if ((SECONDS - logged_s >= 60)); then
      log "waiting for $1, at most $2 s${VALUE:+; it is ${VALUE:0:80}}"
      logged_s=$SECONDS
    fi
    sleep 1
  done
}

# of_all WORKERS: check that VALUE has an address of each worker, which means a complete slice: only the TPU API
# reports the state READY, and hosts have no access to it.
of_all() {
  local -a endpoints
  IFS=, read -ra endpoints <<<"$VALUE"
  ((${#endpoints[@]} >= $1)) && [[ $VALUE =~ ^([^,]*:[0-9]+(\.[0-9]+){3},?)+$ ]]
}

# identify: remember what any machine with a status has: its id, its name, its bucket.
identify() {
  local deadline=$((SECONDS + 60)) id
  until id=$(metadata instance/id); do
    ((SECONDS < deadline)) || fail "the metadata server didn't answer for 60 s"
    sleep 1
  done
  rm -f "$RUN/node"
  remember INSTANCE_ID "$id"
  attribute tpu-bucket CHECKPOINT_BUCKET '[a-z0-9][a-z0-9._-]*'
  attribute tpu-slice TPU_NAME '[a-z][a-z0-9-]*'
}

stage_identity() {
  local workers worker limit_s endpoints address
  identify
  ! optional tpu-steps-bucket || attribute tpu-steps-bucket STEPS_BUCKET '[a-z0-9][a-z0-9._-]*'
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
  # Worker 0 leads: a host without a number must never assume 0.
  awaited agent-worker-number "$limit_s" true ||
    fail "the metadata has no agent-worker-number after $limit_s s: this host's number among $workers workers is unknown, and it stops"
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

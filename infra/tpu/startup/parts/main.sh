# shellcheck shell=bash
# The order, and for how long each stage may be retried, in seconds. Grants of a
# new service account can take minutes to hold, hence the patience with the bucket.

# The script is of the bundle that it installs, and the loader, which found it there, says which that is.
export TPU_BUNDLE=${1:?the id of the bundle that this script is of}

mkdir -p "$RUN" /var/lib/tpu /var/log/tpu /opt/tpu
chmod 0755 "$RUN"
exec 9>"$RUN/boot.lock"
flock --wait 5 9 || { log "another run of this script is under way"; exit 1; }
exec > >(tee --append "$LOG" 9>&-) 2>&1
export LOG_WRITER=$!
exec 7>&1
trap interrupted EXIT

run_stage identity 60
run_stage network 120
run_stage locks 0
run_stage bundle 420
run_stage mount-data 30
run_stage mount-checkpoints 420
run_stage python 0
run_stage logs 0
run_stage environment 0
run_stage code 0
run_stage barrier 30
run_stage launch 30

trap flush_log EXIT
touch "$RUN/ready"
record ready launch "${FINISHED[@]}"
log "ready after $SECONDS s"

# shellcheck shell=bash
# barrier: wait for every worker of the slice. Once a boot: a later run of the script doesn't
# wait for workers that continued long ago.

stage_barrier() {
  # A worker that restarts alone meets the others at the job's own barrier.
  if optional tpu-run; then
    skip "the job has a barrier of its own, before each of its starts"
  fi
  if [[ -f $RUN/barrier-passed ]]; then
    log "passed already in this boot"
    return
  fi
  /opt/tpu/venv/bin/python -m workload.host barrier --phase boot
  touch "$RUN/barrier-passed"
}

# shellcheck shell=bash
# barrier: every worker of the slice has come this far. Once a boot: whoever runs the
# script again later doesn't wait for workers that continued long ago.

stage_barrier() {
  # A worker that restarts alone meets the others where their job waits, at the job's own barrier.
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

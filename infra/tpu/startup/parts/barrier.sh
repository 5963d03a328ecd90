# shellcheck shell=bash
# barrier: every worker of the slice has come this far. Once a boot: whoever runs the
# script again later doesn't wait for workers that went on long ago.

stage_barrier() {
  if [[ -f $RUN/barrier-passed ]]; then
    log "passed already in this boot"
    return
  fi
  /opt/tpu/venv/bin/python -m workload.host barrier --phase boot
  touch "$RUN/barrier-passed"
}

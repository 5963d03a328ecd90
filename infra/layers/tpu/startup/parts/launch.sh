# shellcheck shell=bash
# launch: start the job of the slice's metadata, if any, as a service with its own barrier.

# no_heartbeat: stop the heartbeat of an earlier command.
no_heartbeat() {
  [[ -f /etc/systemd/system/tpu-heartbeat.service ]] || return 0
  systemctl stop tpu-heartbeat.service
  rm /etc/systemd/system/tpu-heartbeat.service
  systemctl daemon-reload
}

stage_launch() {
  local unit=/etc/systemd/system/tpu-job.service heartbeat=/etc/systemd/system/tpu-heartbeat.service
  local run text beat changed variables='' image=''
  if ! optional tpu-run; then
    no_heartbeat
    if [[ -f $unit ]]; then
      systemctl stop tpu-job.service
      rm "$unit"
      systemctl daemon-reload
    fi
    skip "the slice has nothing to run"
  fi
  run=$VALUE
  ! optional tpu-variables || variables=$VALUE
  ! optional tpu-image || image=$VALUE
  text=$(/opt/tpu/venv/bin/python -m workload.host unit --variables "$variables" --image "$image" <<<"$run")
  write_file /etc/sysusers.d/tpu.conf <<<'u tpu - "TPU job" /var/lib/tpu/job' >/dev/null
  systemd-sysusers /etc/sysusers.d/tpu.conf
  # Trainer and extractor write heartbeats themselves: their unit is empty.
  beat=$(/opt/tpu/venv/bin/python -m workload.host unit --of heartbeat <<<"$run")
  if [[ -z $beat ]]; then no_heartbeat; else write_file "$heartbeat" <<<"$beat" >/dev/null; fi
  changed=$(write_file "$unit" <<<"$text")
  [[ -z $changed ]] || systemctl daemon-reload
  # systemd doesn't start a job that failed too often in the last hour, and `start --no-block` reports
  # no error: reset its failures, since running this script again is a request to retry.
  ! systemctl is-failed --quiet tpu-job.service || systemctl reset-failed tpu-job.service
  # A job that already runs in this boot is left alone; starting it must not wait for it.
  [[ -z $changed || $(systemctl show --property=MainPID --value tpu-job.service) == 0 ]] ||
    log "warning: an older job still runs; to change over, on every host: systemctl restart tpu-job.service"
  systemctl start --no-block tpu-job.service
  log "tpu-job.service: $run"
}

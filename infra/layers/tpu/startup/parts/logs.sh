# shellcheck shell=bash
# logs: send the output of this script and the job to Cloud Logging, from the journal's beginning. A boot that
# fails before sends the logs of its stages itself, as one entry.

stage_logs() {
  local unit=/etc/systemd/system/tpu-logs.service text changed
  text=$(/opt/tpu/venv/bin/python -m workload.host unit --of logs </dev/null)
  changed=$(write_file "$unit" <<<"$text")
  [[ -z $changed ]] || systemctl daemon-reload
  # At the next boot it starts before this script.
  systemctl enable --quiet tpu-logs.service
  # Run this bundle's service, from the cursor of the previous one. No boot waits or fails for it.
  systemctl restart --no-block tpu-logs.service
}

# stage_logs_so_far: print the logs of this run's stages.
stage_logs_so_far() {
  local entry
  for entry in "${FINISHED[@]}"; do
    [[ $entry =~ \"name\":\ \"([a-z-]+)\" && -f $RUN/${BASH_REMATCH[1]}.log ]] && cat "$RUN/${BASH_REMATCH[1]}.log"
  done
  return 0
}

# log_entry STAGE PROJECT: print the body of entries.write, with one entry.
log_entry() {
  local zone=${TPU_ZONE:-unknown} node=${TPU_NAME:-unknown} slice logs
  slice=$(metadata instance/attributes/tpu-slice-name) || slice=$node
  logs=$(stage_logs_so_far | tail --bytes=50000)
  printf '{"logName": "projects/%s/logs/tpu-host", ' "$2"
  printf '"resource": {"type": "generic_node", "labels": {"project_id": "%s", "location": "%s", "namespace": "%s", "node_id": "%s"}}, ' \
    "$2" "$zone" "$slice" "$node"
  printf '"labels": {"node": "%s", "worker": "%s", "zone": "%s", "slice": "%s", "instance": "%s", %s"unit": "google-startup-scripts.service"}, ' \
    "$node" "${WORKER_ID:-unknown}" "$zone" "$slice" "${INSTANCE_ID:-unknown}" \
    "${CHECKPOINT_BUCKET:+\"bucket\": \"$CHECKPOINT_BUCKET\", }"
  printf '"entries": [{"severity": "ERROR", "textPayload": %s}]}\n' "$(json_string "boot failed in stage $1
$logs")"
}

# send_failure STAGE: send the log of a failed boot, if the service doesn't. Takes a few seconds at most.
send_failure() {
  local project
  ! systemctl is-active --quiet tpu-logs.service || return 0
  project=$(metadata project/project-id) && authorize || return 0
  log_entry "$1" "$project" >"$RUN/logs.body"
  curl --silent --output "$RUN/logs.answer" --connect-timeout 2 --max-time 5 --retry 2 --retry-connrefused --retry-max-time 6 \
    --header "@$RUN/authorization" --header 'Content-Type: application/json' --data-binary "@$RUN/logs.body" \
    "$LOGGING/v2/entries:write" || log "the boot's log couldn't be sent to Cloud Logging"
}

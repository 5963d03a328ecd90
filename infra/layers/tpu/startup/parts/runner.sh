# shellcheck shell=bash
# Run the stages in order, and record each.

declare -a FINISHED=()
STAGE=''
# Interval of records of a running stage.
RECORD_EACH_S=10

# record STATE STAGE ENTRY...: write the status to a file, to the guest attribute and to the object.
record() {
  local state why
  state=$(state_of "$1")
  why=$(why "$state" "$2")
  status_json "$state" "${@:2}" >"$RUN/status.json.new"
  mv "$RUN/status.json.new" "$RUN/status.json"
  guest_attribute "$state" "$2" "$why"
  upload_status "$state" "$2" "$why"
}

# learn: read the variables of identity, even of a failed one, so that the status has an address.
learn() {
  # shellcheck disable=SC1091
  [[ ! -f $RUN/node ]] || . "$RUN/node"
}

# record_running NAME ATTEMPT START BEGAN_MS: write the status of a running stage.
record_running() {
  record booting "$1" "${FINISHED[@]}" "$(stage_json "$1" running "$2" "$3" '' $(($(now_ms) - $4)) "$RUN/$1.log")"
}

# run_stage NAME PATIENCE_S: run stage_NAME, and retry it until PATIENCE_S have passed if its
# status is TRY_AGAIN. End the boot if the stage fails.
run_stage() {
  local name=$1 deadline=$((SECONDS + $2)) stage_log=$RUN/$1.log
  local attempt=0 pause_s=1 code part outcome start began_ms
  start=$(timestamp)
  began_ms=$(now_ms)
  rm -f "$stage_log"
  STAGE=$name
  while :; do
    attempt=$((attempt + 1))
    record_running "$name" $attempt "$start" "$began_ms"
    log "stage $name: attempt $attempt"
    # A subshell: 'exit' ends the stage alone, and errexit holds inside. Its last line is recorded
    # meanwhile, so that a stage that waits for long isn't mistaken for a dead host.
    code=''
    exec 8< <(
      set +e
      (set -e; "stage_${name//-/_}") 2>&1 7>&- | tee "$stage_log" >&7
      echo "${PIPESTATUS[0]}"
    )
    # A read that times out has consumed the line's beginning: 0, say, without its end.
    until read -r -t "$RECORD_EACH_S" -u 8 part; do
      (($? > 128)) || { code=1 part=''; break; }  # no timeout: it was killed
      code+=$part
      learn
      record_running "$name" $attempt "$start" "$began_ms"
    done
    exec 8<&-
    code+=$part
    learn
    case $code in
      0) outcome=ok ;;
      "$SKIPPED") outcome=skipped ;;
      *) outcome=failed ;;
    esac
    # A stage that failed on a full disk isn't retried, and its log ends with the reason.
    if [[ $outcome == failed ]] && disk_is_full 2>"$RUN/disk"; then
      tee --append "$stage_log" <"$RUN/disk"
      break
    fi
    ((code == TRY_AGAIN && SECONDS < deadline)) || break
    sleep $pause_s
    pause_s=$((pause_s < 5 ? pause_s + 1 : 5))
  done
  local duration_ms=$(($(now_ms) - began_ms))
  FINISHED+=("$(stage_json "$name" $outcome $attempt "$start" "$(timestamp)" $duration_ms "$stage_log")")
  log "stage $name: $outcome after $attempt attempt(s), $duration_ms ms"
  if [[ $outcome == failed ]]; then
    trap flush_log EXIT
    record failed "$name" "${FINISHED[@]}"
    send_failure "$name"
    log "boot failed in stage $name; run it again with: systemctl restart google-startup-scripts"
    exit 1
  fi
}

# interrupted: write the status of a boot that ends outside of a stage.
interrupted() {
  record failed "$STAGE" "${FINISHED[@]}"
  flush_log
}

# flush_log: wait for the log's writer, which systemd would kill with its last lines.
flush_log() {
  exec >/dev/null 2>&1 7>&-
  timeout 5 tail --pid="$LOG_WRITER" --follow --sleep-interval=0.1 /dev/null || true
}

# Let one run at a time go on, and send what it prints to the console and to the log.
begin_boot() {
  mkdir -p "$RUN" /var/lib/tpu /var/log/tpu /opt/tpu
  chmod 0755 "$RUN"
  exec 9>"$RUN/boot.lock"
  flock --wait 5 9 || { log "another run of this script is under way"; exit 1; }
  exec > >(tee --append "$LOG" 9>&-) 2>&1
  export LOG_WRITER=$!
  exec 7>&1
  trap interrupted EXIT
}

# Record that the machine is ready, after its last stage.
end_boot() {
  trap flush_log EXIT
  printf %s "$TPU_BUNDLE" >"$RUN/ready"
  record ready "$1" "${FINISHED[@]}"
  log "ready after $SECONDS s"
}

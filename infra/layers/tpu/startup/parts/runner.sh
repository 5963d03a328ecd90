# shellcheck shell=bash
# Runs the stages, one after the other, and records each.

declare -a FINISHED=()
STAGE=''
# How often a stage that continues is told again.
TOLD_EACH_S=10

# record STATE STAGE ENTRY...: the status as a file on the host, as a guest attribute and as the object.
record() {
  local state why
  state=$(state_of "$1")
  why=$(why "$state" "$2")
  status_json "$state" "${@:2}" >"$RUN/status.json.new"
  mv "$RUN/status.json.new" "$RUN/status.json"
  guest_attribute "$state" "$2" "$why"
  upload_status "$state" "$2" "$why"
}

# learn: what identity knows by now, and what it knew when it failed, so that the status has an address.
learn() {
  # shellcheck disable=SC1091
  [[ ! -f $RUN/node ]] || . "$RUN/node"
}

# tell_running NAME ATTEMPT START BEGAN_MS: that a stage continues.
tell_running() {
  record booting "$1" "${FINISHED[@]}" "$(stage_json "$1" running "$2" "$3" '' $(($(now_ms) - $4)) "$RUN/$1.log")"
}

# run_stage NAME PATIENCE_S: runs stage_NAME; where it asks to be retried, does so
# until PATIENCE_S have passed. Ends the boot when the stage fails.
run_stage() {
  local name=$1 deadline=$((SECONDS + $2)) stage_log=$RUN/$1.log
  local attempt=0 pause_s=1 code part outcome start began_ms
  start=$(timestamp)
  began_ms=$(now_ms)
  rm -f "$stage_log"
  STAGE=$name
  while :; do
    attempt=$((attempt + 1))
    tell_running "$name" $attempt "$start" "$began_ms"
    log "stage $name: attempt $attempt"
    # A shell of its own: 'exit' ends the stage alone, and errexit holds inside. Meanwhile what it says is
    # told, so that a stage that waits for long isn't taken for a host that is dead.
    code=''
    exec 8< <(
      set +e
      (set -e; "stage_${name//-/_}") 2>&1 7>&- | tee "$stage_log" >&7
      echo "${PIPESTATUS[0]}"
    )
    # A read that times out has taken what was there of the line: 0, say, without its end.
    until read -r -t "$TOLD_EACH_S" -u 8 part; do
      (($? > 128)) || { code=1 part=''; break; }  # no timeout: it was killed
      code+=$part
      learn
      tell_running "$name" $attempt "$start" "$began_ms"
    done
    exec 8<&-
    code+=$part
    learn
    case $code in
      0) outcome=ok ;;
      "$SKIPPED") outcome=skipped ;;
      *) outcome=failed ;;
    esac
    # What came of a full disk waits for nobody, and its log ends with that.
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

# interrupted: whatever ends the boot outside a stage is said as well.
interrupted() {
  record failed "$STAGE" "${FINISHED[@]}"
  flush_log
}

# flush_log: systemd kills what a unit leaves behind, and the last lines would go with the log's writer.
flush_log() {
  exec >/dev/null 2>&1 7>&-
  timeout 5 tail --pid="$LOG_WRITER" --follow --sleep-interval=0.1 /dev/null || true
}

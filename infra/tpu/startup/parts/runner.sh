# shellcheck shell=bash
# Runs the stages, one after the other, and records each.

declare -a FINISHED=()
STAGE=''

# record STATE STAGE ENTRY...: the status as a file on the host and as the object.
record() {
  status_json "$@" >"$RUN/status.json.new"
  mv "$RUN/status.json.new" "$RUN/status.json"
  upload_status "$1" "$2"
}

# run_stage NAME PATIENCE_S: runs stage_NAME; where it asks to be tried again, does so
# until PATIENCE_S have passed. Ends the boot when the stage fails.
run_stage() {
  local name=$1 deadline=$((SECONDS + $2)) stage_log=$RUN/$1.log
  local attempt=0 pause_s=1 code outcome start began_ms
  start=$(timestamp)
  began_ms=$(now_ms)
  rm -f "$stage_log"
  STAGE=$name
  while :; do
    attempt=$((attempt + 1))
    record booting "$name" "${FINISHED[@]}" \
      "$(stage_json "$name" running $attempt "$start" '' $(($(now_ms) - began_ms)) "$stage_log")"
    log "stage $name: attempt $attempt"
    # A shell of its own: 'exit' ends the stage alone, and errexit holds inside.
    set +e
    (set -e; "stage_${name//-/_}") 2>&1 | tee "$stage_log"
    code=${PIPESTATUS[0]}
    set -e
    # What identity learned; sourced on failure too, so that the status has an address.
    # shellcheck disable=SC1091
    [[ ! -f $RUN/node ]] || . "$RUN/node"
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
    trap - EXIT
    record failed "$name" "${FINISHED[@]}"
    send_failure "$name"
    log "boot failed in stage $name; run it again with: systemctl restart google-startup-scripts"
    exit 1
  fi
}

# interrupted: whatever ends the boot outside a stage is said as well.
interrupted() { record failed "$STAGE" "${FINISHED[@]}"; }

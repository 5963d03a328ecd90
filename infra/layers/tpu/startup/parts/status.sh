# shellcheck shell=bash
# The status object gs://BUCKET/boot/<node>/worker-<k>.json, written at every change.

# Time of the next record of a running stage in the guest attributes, in seconds of this script.
GUEST_FROM_S=0

# Between the parts of an upload; no line of a status can read so, since it is one line of JSON.
BOUNDARY=tpu-boot-status

timestamp() { date --utc +%Y-%m-%dT%H:%M:%S.%3NZ; }

now_ms() {
  local us=${EPOCHREALTIME//[.,]/}
  printf '%s' "${us:0:-3}"
}

# json_string TEXT: print a JSON string. Bytes outside printable ASCII become '?', so the
# status is valid JSON for any program's output.
json_string() {
  local text
  text=$(printf '%s' "$1" | tr -c '\11\12\40-\176' '?')
  text=${text//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\t'/\\t}
  text=${text//$'\n'/\\n}
  printf '"%s"' "$text"
}

# stage_json NAME STATE ATTEMPT START END DURATION_MS LOGFILE; END is empty while it runs.
stage_json() {
  local end=null tail=''
  [[ -z $5 ]] || end=$(json_string "$5")
  [[ ! -f $7 ]] || tail=$(tail --lines=20 "$7" | tail --bytes=2000)
  printf '{"name": "%s", "state": "%s", "attempt": %d, "start": "%s", "end": %s, "duration_s": %d.%03d, "log_tail": %s}' \
    "$1" "$2" "$3" "$4" "$end" $(($6 / 1000)) $(($6 % 1000)) "$(json_string "$tail")"
}

# status_json STATE STAGE ENTRY...: print the object; ENTRYs are stage_json's.
status_json() {
  local state=$1 stage=$2 worker=${WORKER_ID:-null} entries
  shift 2
  entries=$(printf ', %s' "$@")
  printf '{"version": 1, "node": %s, "worker": %s, "workers": %s, "boot_id": "%s", "bundle": %s, "state": "%s", "stage": "%s", "updated": "%s", "stages": [%s]}\n' \
    "$(json_string "${TPU_NAME:-}")" "$worker" "${WORKER_COUNT:-null}" "$(cat /proc/sys/kernel/random/boot_id)" \
    "$(json_string "${TPU_BUNDLE:-}")" "$state" "$stage" "$(timestamp)" "${entries#, }"
}

# state_of booting|failed|ready: print the recorded state. After a complete boot, a later run of the script is
# not a boot: while it runs, or if it fails, the job that the boot started still runs.
state_of() {
  case $1-$([[ ! -f $RUN/ready ]] || echo again) in
    booting-again) echo rerunning ;;
    failed-again) echo rerun-failed ;;
    *) echo "$1" ;;
  esac
}

# why STATE STAGE: print the last line of the log of a failed or waiting stage, at most 200 characters.
why() {
  local line
  [[ -f $RUN/$2.log ]] || return 0
  line=$(tail --lines=1 "$RUN/$2.log")
  [[ $1 == *failed || $line == 'tpu-boot: not yet: '* || $line == 'tpu-boot: waiting '* ]] || return 0
  line=${line#tpu-boot: }
  line=${line#error: }
  line=${line#not yet: }
  printf '%s' "${line:0:200}"
}

# upload_body STATE STAGE WHY: print $RUN/status.json as the body of a multipart upload. State and reason are
# metadata, which a listing of the bucket returns: watching many hosts reads no objects.
upload_body() {
  local why=''
  [[ -z $3 ]] || why=", \"why\": $(json_string "$3")"
  printf -- '--%s\r\nContent-Type: application/json\r\n\r\n' "$BOUNDARY"
  printf '{"contentType": "application/json", "metadata": {"state": "%s", "stage": "%s", "instance": %s%s}}' \
    "$1" "$2" "$(json_string "${INSTANCE_ID:-}")" "$why"
  printf '\r\n--%s\r\nContent-Type: application/json\r\n\r\n' "$BOUNDARY"
  cat "$RUN/status.json"
  printf '\r\n--%s--\r\n' "$BOUNDARY"
}

# guest_attribute STATE STAGE WHY: write the same to tpu/boot of the guest attributes, which this host alone can
# write: all hosts share a service account, and each could write any object.
# https://cloud.google.com/compute/docs/metadata/manage-guest-attributes allows a machine ten queries a minute and
# three a second, and drops the rest: stages are quick, so one in 15 s is written, and each outcome.
guest_attribute() {
  local code
  [[ $1 == *failed || $1 == ready ]] || ((SECONDS >= GUEST_FROM_S)) || return 0
  GUEST_FROM_S=$((SECONDS + 15))
  code=$(curl --silent --output "$RUN/guest.answer" --write-out '%{http_code}' --max-time 5 --request PUT \
    --header 'Metadata-Flavor: Google' --data "$(printf '{"state": "%s", "stage": "%s", "boot_id": "%s", "updated_s": %s, "why": %s}' \
      "$1" "$2" "$(cat /proc/sys/kernel/random/boot_id)" "$(date +%s)" "$(json_string "$3")")" \
    "$METADATA/instance/guest-attributes/tpu/boot") || true
  [[ $code == 2* ]] || log "guest attribute tpu/boot not written (HTTP $code)"
}

# upload_status STATE STAGE WHY: send $RUN/status.json. An unreachable bucket never stops a boot: the next
# change retries, and the journal has everything.
upload_status() {
  if [[ -z ${CHECKPOINT_BUCKET:-} || -z ${TPU_NAME:-} ]]; then
    [[ ${#FINISHED[@]} -eq 0 ]] || log "status not uploaded: bucket and slice aren't known"
    return
  fi
  # A host without a number must not overwrite the status of a worker.
  local name=boot/$TPU_NAME/worker-${WORKER_ID:-unknown-${INSTANCE_ID:-0}}.json code=000
  upload_body "$1" "$2" "$3" >"$RUN/status.upload"
  if authorize; then
    # Cloud Storage accepts one write a second of an object and answers 429 to more, and stages are quick.
    # The answer goes into a file: curl can't retry if it can't truncate its output, as in /dev/null.
    code=$(curl --silent --output "$RUN/status.answer" --write-out '%{http_code}' --connect-timeout 2 --max-time 5 \
      --retry 2 --retry-max-time 4 --header "@$RUN/authorization" \
      --header "Content-Type: multipart/related; boundary=$BOUNDARY" --data-binary "@$RUN/status.upload" \
      "$STORAGE/upload/storage/v1/b/$CHECKPOINT_BUCKET/o?uploadType=multipart&name=${name//\//%2F}") || true
  fi
  [[ $code == 200 ]] || log "status not uploaded to gs://$CHECKPOINT_BUCKET/$name (HTTP $code); the next change tries again"
}

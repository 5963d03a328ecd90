# shellcheck shell=bash
# image: pull the image of the job's container. Before the job's barrier, so that no worker waits there for a pull.

stage_image() {
  local image result code=0
  optional tpu-image || skip "the slice's program starts on the host"
  image=$VALUE
  optional tpu-run || skip "the slice has nothing to run"
  result=$(/opt/tpu/venv/bin/python -m workload.host image "$image" <<<"$VALUE" 2>&1) || code=$?
  result=${result#workload host image: }
  case $code in
    0) log "$result" ;;
    "$TRY_AGAIN") try_again "$result" ;;
    *) fail "$result" ;;
  esac
}

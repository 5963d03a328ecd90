# shellcheck shell=bash
# image: pull the image of the job's container. Before the job's barrier, so that no worker waits there for a pull.
# What another host couldn't run either is no failure of this one: the job ends with it.

stage_image() {
  local image result code=0
  optional tpu-image || skip "the slice's program starts on the host"
  image=$VALUE
  optional tpu-run || skip "the slice has nothing to run"
  result=$(/opt/tpu/venv/bin/python -m workload.host image "$image" <<<"$VALUE" 2>&1) || code=$?
  result=${result#workload host image: }
  # shellcheck disable=SC2154  # deadline: of run_stage
  ((code != TRY_AGAIN || SECONDS > deadline - 30)) || try_again "$result"
  ((code == 0)) || result="warning: $result"
  log "$result"
}

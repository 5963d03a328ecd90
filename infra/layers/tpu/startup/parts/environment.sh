# shellcheck shell=bash
# environment: write the same variables for services, login shells and plain 'ssh host command'.

variables() {
  cat <<VARIABLES
DATA_DIR=/mnt/data
CHECKPOINT_DIR=/mnt/checkpoints${CHECKPOINT_FOLDER:+/$CHECKPOINT_FOLDER}
CHECKPOINT_BUCKET=$CHECKPOINT_BUCKET
CHECKPOINT_URL=gs://$CHECKPOINT_BUCKET${CHECKPOINT_FOLDER:+/$CHECKPOINT_FOLDER}
TPU_NAME=$TPU_NAME
TPU_ZONE=$TPU_ZONE
$PLACE
ACCELERATOR_TYPE=$ACCELERATOR_TYPE
VARIABLES
  [[ -z ${STEPS_BUCKET:-} ]] || echo "STEPS_BUCKET=$STEPS_BUCKET"
  [[ -z ${TPU_MEMBER:-} ]] || echo "TPU_MEMBER=$TPU_MEMBER"
}

# pam_environment: print /etc/environment, which pam_env reads for every session: its previous
# content, and our lines between two marks.
pam_environment() {
  local rest path
  rest=$(sed '/^# tpu-boot: begin/,/^# tpu-boot: end/d' /etc/environment 2>/dev/null || true)
  path=$(sed -n 's/^PATH=//p' <<<"$rest" | tail --lines=1 | tr -d '"')
  [[ -z $rest ]] || printf '%s\n' "$rest"
  echo '# tpu-boot: begin'
  variables
  echo "PATH=\"/opt/tpu/venv/bin:${path:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}\""
  echo '# tpu-boot: end'
}

stage_environment() {
  [[ -z ${CHECKPOINT_FOLDER:-} ]] || mkdir --parents "/mnt/checkpoints/$CHECKPOINT_FOLDER" ||
    try_again "/mnt/checkpoints/$CHECKPOINT_FOLDER can't be made"
  # workload/place.py computes the hosts' order and their coordinator for all launchers.
  PLACE=$(/opt/tpu/venv/bin/python -m workload.host place) || fail "this host's place in its slice is unknown: see above"
  { variables; echo 'PATH=/opt/tpu/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'; } |
    write_file /etc/tpu/environment >/dev/null
  # shellcheck disable=SC2016
  { variables | sed 's/^/export /'; echo 'case ":$PATH:" in *:/opt/tpu/venv/bin:*) ;; *) export PATH=/opt/tpu/venv/bin:$PATH ;; esac'; } |
    write_file /etc/profile.d/tpu.sh >/dev/null
  pam_environment | write_file /etc/environment >/dev/null
  # Google's agent puts this script into a temporary folder before it runs it: in memory, since on a full
  # disk the script could neither run nor report.
  write_file /etc/systemd/system/google-startup-scripts.service.d/tpu.conf <<<$'[Service]\nEnvironment=TMPDIR=/dev/shm' >/dev/null
  # OS Login gives people no group in common, hence writable for all; the sticky bit
  # protects users' files from each other.
  [[ -d /opt/training ]] || mkdir --mode=1777 /opt/training
}

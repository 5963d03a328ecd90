# shellcheck shell=bash
# Run the stages in order, each with the seconds for which it may be retried. Grants of a
# new service account can take minutes to apply, hence the limit of the bucket's stages.

# The script is a file of the bundle that it installs; the loader passes the bundle's id.
export TPU_BUNDLE=${1:?missing id of the bundle}

# An image of the bundle (infra/publish/image.py) is built without a network: its files are mounted here.
if [[ ${2:-} == image ]]; then
  cd "/opt/tpu/bundles/$TPU_BUNDLE"
  if ! { echo "$TPU_BUNDLE  manifest" | sha256sum --check --status && sha256sum --check --strict --quiet manifest; }; then
    fail "the build's context isn't the bundle $TPU_BUNDLE"
  fi
  mkdir -p "$RUN" /opt/training /var/lib/tpu
  stage_python
  code=0
  (set -e; stage_code) & # in the background, where errexit holds
  wait $! || code=$?
  ((code == 0 || code == SKIPPED)) || exit "$code"
  exit 0
fi

# A container of a job (infra/layers/queue/jobs/jobset.py) installs the same bundle and executes its program.
if [[ ${2:-} == pod ]]; then
  mkdir -p "$RUN" /opt/tpu /var/lib/tpu
  for stage in bundle python code; do
    until
      code=0
      (set -e; "stage_$stage") & # in the background, where errexit holds
      wait $! || code=$?
      ((code != TRY_AGAIN))
    do
      ((SECONDS < 420)) || fail "the stage $stage made no progress for 7 min"
      sleep 5
    done
    ((code == 0 || code == SKIPPED)) || exit "$code"
  done
  export PATH=/opt/tpu/venv/bin:$PATH
  [[ ! -d /opt/training ]] || cd /opt/training
  exec workload launch -- "${@:3}"
fi

begin_boot
# A host that is ready needs no other stages for a change of the user's code (tpu run --replace).
if [[ ${2:-} == code ]]; then
  # All stages run in their service, which no end of an SSH session interrupts; it takes the lock.
  code_alone || exec systemctl restart google-startup-scripts 9>&-
  learn
  run_stage bundle 420
  run_stage code 0
  end_boot code
  exit 0
fi
run_stage identity 60
run_stage network 120
run_stage locks 0
run_stage bundle 420
run_stage mount-data 30
run_stage mount-checkpoints 420
run_stage python 0
run_stage logs 0
run_stage environment 0
run_stage code 0
run_stage image 420
run_stage barrier 30
run_stage launch 30
end_boot launch

# shellcheck shell=bash
# code: the user's own code, from the bundle into /opt/training. Files of the bundle's are replaced; what
# somebody wrote or changed on this host stays, beside them where it has the same name.

stage_code() {
  local archive=/opt/tpu/bundles/$TPU_BUNDLE/code.tar.gz record=/var/lib/tpu/code.json
  [[ -f $archive || -f $record ]] || skip "the bundle holds no code of the user's own"
  /opt/tpu/venv/bin/python -m workload.host code --archive "$archive" --into /opt/training --record "$record"
}

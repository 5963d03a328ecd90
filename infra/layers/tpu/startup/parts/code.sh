# shellcheck shell=bash
# code: unpack the user's code from the bundle into /opt/training. Files of the bundle are replaced; files
# written or changed on this host are kept, beside them if they have the same name.

stage_code() {
  local archive=/opt/tpu/bundles/$TPU_BUNDLE/code.tar.gz record=/var/lib/tpu/code.json
  [[ -f $archive || -f $record ]] || skip "the bundle holds no code of the user's own"
  /opt/tpu/venv/bin/python -m workload.host code --archive "$archive" --into /opt/training --record "$record"
}

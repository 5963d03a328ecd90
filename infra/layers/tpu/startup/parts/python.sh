# shellcheck shell=bash
# python: install an interpreter, and the workload with its locked packages, from the bundle
# alone. Kept by the hashes of what it is made of, so that another bundle with the same has nothing to do.

stage_python() {
  local home bundle=/opt/tpu/bundles/$TPU_BUNDLE manifest=$RUN/$TPU_BUNDLE workload
  [[ -f $manifest ]] || manifest=$bundle/manifest # of an image's build
  home=$(grep --extended-regexp --invert-match '  (code\.tar\.gz|gcsfuse|startup\.sh)$' "$manifest" | sha256sum)
  home=/opt/tpu/venvs/${home%% *}
  if [[ ! -f $home/complete ]]; then
    rm -rf "$home"
    mkdir -p "$home"
    tar --extract --gzip --file="$bundle/python.tar.gz" --directory="$home" --no-same-owner
    "$home/python/bin/python3" -c 'import ssl, ctypes, zlib, hashlib' ||
      fail "the bundle's interpreter doesn't run on this image; was it packed on a newer system?"
    # The cache is beside the environment, so that files are linked and not copied.
    export UV_CACHE_DIR=$home/cache UV_OFFLINE=1 UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=hardlink
    local install=("$bundle/uv" pip install --quiet --python "$home/venv/bin/python" --no-index --find-links "$bundle/wheels")
    "$bundle/uv" venv --quiet --python "$home/python/bin/python3" "$home/venv"
    "${install[@]}" --require-hashes --requirements "$bundle/requirements.txt"
    # Packages of the user's code, resolved for this interpreter at publication.
    [[ ! -f $bundle/code-requirements.txt ]] ||
      "${install[@]}" --require-hashes --requirements "$bundle/code-requirements.txt"
    # The workload's hash is in the manifest, and its dependencies are installed. Machines without chips have none.
    for workload in "$bundle"/wheels/tpu_workload-*.whl; do
      [[ ! -f $workload ]] || "${install[@]}" --no-deps "$workload"
    done
    [[ ! -f $bundle/bytecode.tar.gz ]] ||
      tar --extract --gzip --file="$bundle/bytecode.tar.gz" --directory="$home" --no-same-owner
    # The job's user can't write bytecode here and would compile the workload at every start. That of all else that
    # the trainer imports is the bundle's. A library that this image can't load fails now, by name.
    if grep -q '^jax==' "$bundle/requirements.txt"; then
      (cd "$home"/venv/lib/python3*/site-packages && sed --quiet 's/^\(.*\.py\),.*/\1/p' tpu_workload-*.dist-info/RECORD |
        "$home/venv/bin/python" -m compileall -q -i -)
      "$home/venv/bin/python" -c 'import jaxlib.xla_client, tensorstore'
    fi
    rm -rf "$home/cache"
    touch "$home/complete"
  fi
  ln -sfn "$home/venv" /opt/tpu/venv.new
  mv -T /opt/tpu/venv.new /opt/tpu/venv
  log "$(/opt/tpu/venv/bin/python --version) with $(find /opt/tpu/venv/lib/ -maxdepth 3 -name '*.dist-info' | wc -l) packages"
}

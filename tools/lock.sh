#!/usr/bin/env bash
# Resolves the direct dependencies in pyproject.toml into hash-locked files.
#
#   tools/lock.sh            add what is missing; what is locked already keeps its version
#   tools/lock.sh --upgrade  take the newest versions that fit
#   tools/lock.sh --check    fail when pyproject.toml asks for something else than was locked
#
# requirements.txt        a developer's machine: the program, the rehearsal, the tests
# tests/parity/requirements.txt  torch and transformers, which the decoder is compared with
# workload/locks/cpu.txt  a rehearsed host;  tpu.txt a real one;  *-tensorflow.txt with TensorFlow
set -euo pipefail
cd "$(dirname "$0")/.."

asked=$(python3 - <<'P'
import hashlib, json, tomllib
content = tomllib.load(open("pyproject.toml", "rb"))
project = content["project"]
asked = [project["requires-python"], project["dependencies"], project["optional-dependencies"], content["dependency-groups"]]
print(hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16])
P
)
stamp="# Locked from pyproject.toml by 'make lock'; dependencies asked for: $asked"

if [ "${1:-}" = --check ]; then
  for file in requirements.txt tests/parity/requirements.txt workload/locks/*.txt; do
    [ "$(head -n 1 "$file")" = "$stamp" ] || {
      echo "$file was locked from other dependencies than pyproject.toml names now: run 'make lock'" >&2
      exit 1
    }
  done
  exit 0
fi

keep=yes
[ "${1:-}" = --upgrade ] && keep=

compile() { # file, then uv's own arguments
  local file=$1
  shift
  mkdir -p "$(dirname "$file")"
  rm -f "$file.new"
  [ -z "$keep" ] || [ ! -f "$file" ] || cp "$file" "$file.new" # uv prefers the versions that it finds
  uv pip compile --quiet --no-header --universal --generate-hashes --no-annotate --python-version 3.11 \
    --output-file "$file.new" "$@" >/dev/null
  sed -i "1i $stamp" "$file.new"
  mv "$file.new" "$file"
  echo "$file: $(grep -c == "$file") packages"
}

compile requirements.txt --extra host --extra infra --extra rehearsal --extra test --extra prepare --extra preflight pyproject.toml
compile tests/parity/requirements.txt --group pyproject.toml:parity
compile workload/locks/cpu.txt --extra host pyproject.toml
compile workload/locks/tpu.txt --extra host --extra tpu pyproject.toml
compile workload/locks/cpu-tensorflow.txt --extra host --extra tensorflow pyproject.toml
compile workload/locks/tpu-tensorflow.txt --extra host --extra tpu --extra tensorflow pyproject.toml

#!/usr/bin/env bash
# Makes what `make test` and `make rehearse` need, each part once, and prints what it did.
#
#   tools/setup.sh python   the hash-locked virtual environment, linked as .venv
#   tools/setup.sh system   Debian packages (root only; skipped with a word where not root)
#   tools/setup.sh tools    Pulumi CLI and language host, gcsfuse; links in .venv/bin
#   tools/setup.sh parity   torch and transformers in an environment of their own, for the tests
#   tools/setup.sh spark    Spark in an environment of its own, for `workload preprocess`; needs Java 17
#   tools/setup.sh checkov  checkov in an environment of its own, which audits what the stacks declare
#   tools/setup.sh kubernetes  a control plane with Kueue and JobSet, for tests and rehearsals of GKE
#   tools/setup.sh          all but parity, spark, checkov and kubernetes
#
# Cold on 2 cores: system 20 s, python 2 min, tools 6 min, kubernetes 9 min. Warm: 0.2 s.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${TPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tpu-pulumi}
mkdir -p "$cache"

# Name the packages here and nowhere else; `make doctor` reads this list.
packages="python3-venv debootstrap systemd-container fuse3 openssh-client iproute2 nftables e2fsprogs util-linux procps curl ca-certificates"

setup_system() {
  local missing=()
  command -v dpkg-query >/dev/null || { echo "setup: not Debian: install these yourself: $packages" >&2; return; }
  for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ]; then
    echo "setup: not root, so not installed: ${missing[*]} (the rehearsal needs them: sudo apt-get install ${missing[*]})" >&2
    return
  fi
  echo "setup: installing Debian packages: ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Makes a virtual environment from a lock, once, and leaves its folder in $venv.
make_venv() { # lock, what it costs
  local lock=$1 cost=$2 python=${PYTHON:-python3} version key
  version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || {
    echo "setup: no '$python': install Python 3.11, 3.12 or 3.13, or name one: make PYTHON=python3.12" >&2
    exit 1
  }
  case $version in
    3.11.*|3.12.*|3.13.*) ;;
    *) echo "setup: $python is $version; 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12" >&2; exit 1 ;;
  esac
  key=$( (cat "$lock"; "$python" -c 'import sys; print(sys.version, sys.base_prefix)') | sha256sum | cut -c1-16)
  venv=$cache/venv-$key
  if [ ! -f "$venv/.complete" ]; then
    exec 8>"$cache/venv.lock"
    flock 8
    if [ ! -f "$venv/.complete" ]; then
      echo "setup: installing $(grep -c == "$lock") locked Python packages into $venv (once, $cost)"
      rm -rf "$venv"
      "$python" -m venv "$venv"
      # Alone (-I): a package on the caller's PYTHONPATH would pass for installed.
      "$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
      touch "$venv/.complete"
    fi
    exec 8>&-
  fi
}

setup_python() {
  # A folder of that name would take the link into itself, and stay what `make` uses.
  if [ -d .venv ] && [ ! -L .venv ]; then
    echo "setup: .venv is a folder of your own, and belongs to 'make': move it away" >&2
    exit 1
  fi
  make_venv requirements.txt "about 2 min"
  ln -sfn "$venv" .venv
  launcher bin/tpu cli.__main__
  launcher bin/workload workload.__main__
  # Not on people's PATH: they have Google's own.
  launcher libexec/gke-gcloud-auth-plugin infra.google.exec_credential
}

# A program of the project: of the checkout around the working directory, else of the one whose .venv it is
# called through; several checkouts share one environment.
launcher() { # path, module
  local draft=".venv/$1.$$"
  mkdir -p "${draft%/*}"
  cat >"$draft" <<END
#!/bin/sh
root=\$PWD
while [ -n "\$root" ] && ! [ -f "\$root/cli/__main__.py" ]; do root=\${root%/*}; done
[ -n "\$root" ] || root=\$(cd "\$(dirname "\$0")/../.." && pwd -L) || exit
code='import sys; sys.path[0] = sys.argv.pop(1); from $2 import entry; entry()'
exec "\$(dirname "\$0")/../bin/python" -c "\$code" "\$root" "\$@"
END
  chmod 0755 "$draft"
  mv -f "$draft" ".venv/$1"
}

# torch and transformers: what the decoder is compared with. Prints the interpreter, last of all.
setup_parity() {
  make_venv tests/parity/requirements.txt "about 1 min, 5.3 GB"
  echo "$venv/bin/python"
}

# Spark for `workload preprocess`. Prints the interpreter, last of all.
setup_spark() {
  make_venv tools/spark/requirements.txt "about 1 min, 0.7 GB"
  echo "$venv/bin/python"
}

# checkov, for tests/infra/policy/test_checkov.py and `tpu policy --terraform`. Prints its program, last of all.
setup_checkov() {
  make_venv tools/checkov/requirements.txt "about 1 min, 0.3 GB"
  echo "$venv/bin/checkov"
}

# cosmic-ray, for `python -m tests.proofs mutants`. Prints its program, last of all.
setup_mutants() {
  make_venv tools/mutants/requirements.txt "about 20 s, 0.1 GB"
  echo "$venv/bin/cosmic-ray"
}

# Order of choice: an official program on PATH; what was put into the cache before; the vendor's
# download; a build from pinned modules. TPU_BUILD_TOOLS=1 goes straight to the build.
setup_tools() {
  local dir official=
  [ "${TPU_BUILD_TOOLS:-}" = 1 ] || official=yes
  # What these links point at must not be the links themselves, by whatever name the folder stands on
  # PATH: another clone's .venv is the same environment.
  local kept=() entry
  while IFS= read -r -d : entry; do
    [ "$entry" -ef .venv/bin ] || kept+=("$entry")
  done <<<"$PATH:"
  PATH=$(IFS=:; echo "${kept[*]}")

  if [ $official ] && pulumi version >/dev/null 2>&1 && command -v pulumi-language-python >/dev/null; then
    [ -e .venv/bin/pulumi ] || echo "setup: using the Pulumi CLI on PATH: $(command -v pulumi) $(pulumi version)"
    ln -sf "$(command -v pulumi)" .venv/bin/pulumi
  else
    if [ $official ] && ! tools/install.sh --cached pulumi >/dev/null && dir=$(tools/official-pulumi.sh "$cache"); then
      echo "setup: using the official Pulumi CLI, downloaded to $dir"
      ln -sf "$dir"/pulumi* .venv/bin/
    else
      dir=$(tools/install.sh pulumi)
      ln -sf "$dir"/pulumi* .venv/bin/
      dir=$(tools/install.sh pulumi-language-python)
      # A copy, since it looks for its -exec script beside its own file, not beside a link to it.
      install -m 0755 "$dir"/pulumi-language-python ".venv/bin/.pulumi-language-python.$$"
      mv -f ".venv/bin/.pulumi-language-python.$$" .venv/bin/pulumi-language-python
    fi
  fi

  rm -f .venv/bin/fake-gcs-server # an earlier set-up linked it
  if [ $official ] && command -v gcsfuse >/dev/null; then
    [ -e .venv/bin/gcsfuse ] || echo "setup: using the gcsfuse on PATH: $(command -v gcsfuse)"
    ln -sf "$(command -v gcsfuse)" .venv/bin/gcsfuse
  else
    dir=$(tools/install.sh storage)
    ln -sf "$dir"/gcsfuse .venv/bin/
  fi
}

setup_kubernetes() {
  local tool
  for tool in kubernetes queue; do
    tools/install.sh "$tool" >/dev/null
  done
}

case ${1:-all} in
  system) setup_system ;;
  python) setup_python ;;
  tools) setup_tools ;;
  parity) setup_parity ;;
  spark) setup_spark ;;
  checkov) setup_checkov ;;
  mutants) setup_mutants ;;
  kubernetes) setup_kubernetes ;;
  all) setup_system; setup_python; setup_tools ;;
  *) echo "usage: tools/setup.sh [system|python|tools|parity|spark|checkov|mutants|kubernetes]" >&2; exit 2 ;;
esac

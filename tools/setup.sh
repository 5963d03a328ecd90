#!/usr/bin/env bash
# Install what commands need, each part once; print the time it will take first, and a line for each part.
#
#   tools/setup.sh [PART...]     without any: system python pulumi plugins gcsfuse host
#
#   system      Debian packages (root only)
#   python      the hash-locked virtual environment, linked as .venv
#   pulumi      Pulumi's CLI and language host
#   plugins     Pulumi's official plug-ins for Google Cloud and Kubernetes, where the vendor's site answers
#   gcsfuse     gcsfuse
#   host        what rehearsed hosts boot: an image, an interpreter, packages (root only)
#   manifests   released manifests of Kueue and JobSet, for the layer `queue`
#   kubernetes  a control plane with Kueue and JobSet, for rehearsals of GKE and `make prove`
#   queue-previous  the Kueue that is upgraded from, for `make prove`
#   spark       Spark, for `workload preprocess`; needs Java 17. Prints the interpreter
#   parity      torch and transformers, for `make prove`. Prints the interpreter
#   checkov     checkov, for `make prove` and `tpu policy --terraform`. Prints the program
#   mutants     cosmic-ray, for `python -m tests.proofs mutants`. Prints the program
#   site        mkdocs-material, for `make site` and `make test`. Prints the program
#   wandb       W&B's package, for `make prove`. Prints the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${TPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tpu-pulumi}
logs=$cache/logs
mkdir -p "$logs"

# Name the packages here and nowhere else; `make doctor` reads this list.
packages="python3-venv lua5.1 debootstrap systemd-container fuse3 openssh-client iproute2 nftables e2fsprogs util-linux procps curl ca-certificates"

# Seconds that each part takes by itself on two idle cores.
declare -A expected_s=([system]=10 [python]=60 [pulumi]=135 [plugins]=15 [gcsfuse]=140 [host]=65
  [manifests]=35 [kubernetes]=700 [queue-previous]=240 [spark]=40 [parity]=95 [checkov]=35 [mutants]=20 [site]=20 [wandb]=20)

say() { echo "setup: $*" >&2; }

is_root() { [ "$(id -u)" -eq 0 ]; }

# Parts. `has_PART` succeeds where nothing is to be done; `install_PART` does it, and its output goes to a log.

missing_packages() {
  local package
  for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || echo "$package"
  done
}

has_system() {
  command -v dpkg-query >/dev/null || { say "not Debian: install these yourself: $packages"; return; }
  local missing
  missing=$(missing_packages | xargs)
  [ -n "$missing" ] || return 0
  is_root && return 1
  say "not root, so not installed: $missing (the rehearsal needs them: sudo apt-get install $missing)"
}

install_system() {
  apt-get update -qq
  missing_packages | DEBIAN_FRONTEND=noninteractive xargs apt-get install -y -qq --no-install-recommends
}

# Print the folder of the virtual environment of a lock.
venv_of() { # lock
  local python=${PYTHON:-python3} version key
  version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') || {
    say "no '$python': install Python 3.11, 3.12 or 3.13, or name one: make PYTHON=python3.12"
    return 1
  }
  case $version in
    3.11.*|3.12.*|3.13.*) ;;
    *) say "$python is $version; 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12"; return 1 ;;
  esac
  key=$( (cat "$1"; "$python" -c 'import sys; print(sys.version, sys.base_prefix)') | sha256sum | cut -c1-16)
  echo "$cache/venv-$key"
}

has_venv() { [ -f "$(venv_of "$1")/.complete" ]; } # lock

make_venv() { # lock
  local venv
  venv=$(venv_of "$1")
  exec 8>"$cache/venv.lock"
  flock 8
  [ ! -f "$venv/.complete" ] || return 0
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  # Alone (-I): a package on the caller's PYTHONPATH would pass for installed.
  local pip=("$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check --require-hashes)
  # uv, at its locked version, installs the rest in a fifth of pip's time; pip knows more kinds of mirrors.
  sed -n '/^uv==/,/[^\\]$/p' requirements.txt >"$venv/uv.txt"
  "${pip[@]}" -r "$venv/uv.txt"
  UV_CACHE_DIR=$cache/uv "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --require-hashes -r "$1" ||
    "${pip[@]}" -r "$1"
  touch "$venv/.complete"
}

has_python() {
  # A folder of that name would take the link into itself, and stay what `make` uses.
  if [ -d .venv ] && [ ! -L .venv ]; then
    say ".venv is a folder of your own, and belongs to 'make': move it away"
    exit 1
  fi
  has_venv requirements.txt && link_python
}

install_python() {
  make_venv requirements.txt
  link_python
  # Compile what the program imports, a third of 12,000 modules. Some modules need packages of other environments.
  env -u PYTHONDONTWRITEBYTECODE JAX_PLATFORMS=cpu .venv/bin/python - <<'P'
import contextlib
import importlib
import pkgutil

for name in ("cli", "infra", "fleet", "pipeline", "workload", "rehearsal", "settings_schema", "views",
             "google_facts"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}.", onerror=print):
        with contextlib.suppress(Exception):
            module.name.endswith("__main__") or importlib.import_module(module.name)
P
}

link_python() {
  ln -sfn "$(venv_of requirements.txt)" .venv
  launcher bin/tpu cli.__main__
  launcher bin/workload workload.__main__
  # Not on people's PATH: they have Google's own.
  launcher libexec/gke-gcloud-auth-plugin infra.google.exec_credential
}

# A program of the project: of the checkout around the working directory, else of the one whose .venv it is
# called through; several checkouts share one environment. Ctrl+C while it imports ends it without a traceback:
# it waits, where env(1) can block it, until Python is up.
launcher() { # path, module
  local draft=".venv/$1.$$"
  mkdir -p "${draft%/*}"
  cat >"$draft" <<END
#!/bin/sh
root=\$PWD
while [ -n "\$root" ] && ! [ -f "\$root/cli/__main__.py" ]; do root=\${root%/*}; done
[ -n "\$root" ] || root=\$(cd "\$(dirname "\$0")/../.." && pwd -L) || exit
code='import sys, _signal as s
before = s.getsignal(s.SIGINT)
before == s.default_int_handler and s.signal(s.SIGINT, s.SIG_DFL)
s.pthread_sigmask(s.SIG_UNBLOCK, [s.SIGINT])
sys.path[0] = sys.argv.pop(1)
from $2 import entry
s.signal(s.SIGINT, before)
entry()'
block=--block-signal=INT
env \$block true 2>/dev/null || block=
exec env \$block "\$(dirname "\$0")/../bin/python" -c "\$code" "\$root" "\$@"
END
  chmod 0755 "$draft"
  mv -f "$draft" ".venv/$1"
}

# Order of choice: an official program on PATH; what was put into the cache before; the vendor's
# download; a build from pinned modules. TPU_BUILD_TOOLS=1 goes straight to the build.
official() { [ "${TPU_BUILD_TOOLS:-}" != 1 ]; }

# PATH without .venv/bin by any name: what its links point at must not be the links themselves, and another
# clone's .venv is the same environment.
outer_path() {
  local kept=() entry
  while IFS= read -r -d : entry; do
    [ "$entry" -ef .venv/bin ] || kept+=("$entry")
  done <<<"$PATH:"
  (IFS=:; echo "${kept[*]}")
}

# The program on PATH, where it may be used.
on_path() { official && PATH=$(outer_path) command -v "$1"; } # name

pulumi_on_path() { on_path pulumi-language-python >/dev/null && on_path pulumi; }

downloaded_pulumi() {
  official && ! tools/install.sh --cached pulumi >/dev/null && tools/official-pulumi.sh --cached "$cache"
}

has_pulumi() {
  pulumi_on_path >/dev/null || downloaded_pulumi >/dev/null ||
    { tools/install.sh --cached pulumi && tools/install.sh --cached pulumi-language-python; } >/dev/null
}

install_pulumi() {
  if official && ! tools/install.sh --cached pulumi && tools/official-pulumi.sh "$cache"; then
    return
  fi
  tools/install.sh pulumi
  tools/install.sh pulumi-language-python
}

link_pulumi() {
  local dir
  if dir=$(pulumi_on_path); then
    [ -e .venv/bin/pulumi ] || say "using the Pulumi CLI on PATH: $dir"
    ln -sf "$dir" .venv/bin/pulumi
  elif dir=$(downloaded_pulumi); then
    ln -sf "$dir"/pulumi* .venv/bin/
  else
    dir=$(tools/install.sh --cached pulumi)
    ln -sf "$dir"/pulumi* .venv/bin/
    dir=$(tools/install.sh --cached pulumi-language-python)
    # A copy, since it looks for its -exec script beside its own file, not beside a link to it.
    install -m 0755 "$dir"/pulumi-language-python ".venv/bin/.pulumi-language-python.$$"
    mv -f ".venv/bin/.pulumi-language-python.$$" .venv/bin/pulumi-language-python
  fi
}

has_plugins() { tools/official-plugins.sh --cached "$cache"; }

install_plugins() { tools/official-plugins.sh "$cache"; }

has_gcsfuse() { on_path gcsfuse >/dev/null || tools/install.sh --cached storage >/dev/null; }

install_gcsfuse() { tools/install.sh storage; }

link_gcsfuse() {
  local program
  if program=$(on_path gcsfuse); then
    [ -e .venv/bin/gcsfuse ] || say "using the gcsfuse on PATH: $program"
  else
    program=$(tools/install.sh --cached storage)/gcsfuse
  fi
  ln -sf "$program" .venv/bin/gcsfuse
}

host_stamp() { echo "$cache/host-$(cat workload/locks/*.txt rehearsal/hosts/image.py | sha256sum | cut -c1-16)"; }

has_host() { ! is_root || [ -f "$(host_stamp)" ]; }

install_host() {
  local image program
  .venv/bin/python -c 'from rehearsal.hosts.image import ensure_image as make
from rehearsal.world.layout import cache_dir
make(cache_dir(), print)' &
  image=$!
  .venv/bin/python -c 'from infra.publish.wheels import locked
from infra.settings.sources import part
locked(part("workload/locks/cpu.txt"))'
  # The bundle contains gcsfuse; where another process is building it, this waits for that.
  program=$(on_path gcsfuse) || program=$(tools/install.sh storage)/gcsfuse
  PATH=${program%/*}:$PATH .venv/bin/python -m cli publish dev --lock cpu --dry-run
  wait "$image"
  touch "$(host_stamp)"
}

has_manifests() { tools/install.sh --cached manifests >/dev/null; }

install_manifests() { tools/install.sh manifests; }

has_kubernetes() { tools/install.sh --cached kubernetes >/dev/null && tools/install.sh --cached queue >/dev/null; }

install_kubernetes() { tools/install.sh kubernetes && tools/install.sh queue; }

has_queue-previous() { tools/install.sh --cached queue-previous >/dev/null; }

install_queue-previous() { tools/install.sh queue-previous; }

has_spark() { has_venv tools/spark/requirements.txt; }

install_spark() { make_venv tools/spark/requirements.txt; }

has_parity() { has_venv tests/parity/requirements.txt; }

install_parity() { make_venv tests/parity/requirements.txt; }

has_checkov() { has_venv tools/checkov/requirements.txt; }

install_checkov() { make_venv tools/checkov/requirements.txt; }

has_mutants() { has_venv tools/mutants/requirements.txt; }

install_mutants() { make_venv tools/mutants/requirements.txt; }

has_site() { has_venv tools/site/requirements.txt; }

install_site() { make_venv tools/site/requirements.txt; }

has_wandb() { has_venv tools/wandb/requirements.txt; }

install_wandb() { make_venv tools/wandb/requirements.txt; }

# Run one part, with its output in a log, and print how long it took.
run_part() { # part
  local begun=$SECONDS log=$logs/$1.log
  # Not on the left of || or in a condition: there, bash would pass over a failed command.
  if ! bash "$0" --install "$1" >"$log" 2>&1 </dev/null; then
    say "$1 failed:"
    tail -n 20 "$log" >&2
    say "all of it: $log"
    return 1
  fi
  grep '^note: ' "$log" | sed 's/^note: /setup: /' >&2 || true
  say "$1 is installed after $((SECONDS - begun)) s (about ${expected_s[$1]} s by itself)"
}

# The estimate: builds use both cores, and overlap with what waits for a network or uses one.
announce() { # parts
  local part total=0
  for part in "$@"; do total=$((total + expected_s[$part])); done
  say "installing $* (once, into $cache): about $(((total * 4 / 5 + 59) / 60)) min on two idle cores"
}

main() { # parts
  local part missing=() jobs=() status=0 job
  for part in "$@"; do
    [ -n "${expected_s[$part]:-}" ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
    "has_$part" || missing+=("$part")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    announce "${missing[@]}"
    # Others need the packages of the system; the host's parts are made by the environment's Python.
    local -A is_missing=()
    for part in "${missing[@]}"; do is_missing[$part]=yes; done
    if [ "${is_missing[system]:-}" ]; then run_part system; fi
    (
      if [ "${is_missing[python]:-}" ]; then run_part python; fi
      if [ "${is_missing[host]:-}" ]; then run_part host; fi
    ) &
    jobs+=($!)
    for part in "${missing[@]}"; do
      case $part in system|python|host) continue ;; esac
      run_part "$part" &
      jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job" || status=1; done
    [ $status -eq 0 ] || exit $status
  fi
  for part in "$@"; do
    case $part in
      pulumi|gcsfuse) [ ! -d .venv/bin ] || "link_$part" ;;
      spark) echo "$(venv_of tools/spark/requirements.txt)/bin/python" ;;
      parity) echo "$(venv_of tests/parity/requirements.txt)/bin/python" ;;
      checkov) echo "$(venv_of tools/checkov/requirements.txt)/bin/checkov" ;;
      mutants) echo "$(venv_of tools/mutants/requirements.txt)/bin/cosmic-ray" ;;
      site) echo "$(venv_of tools/site/requirements.txt)/bin/mkdocs" ;;
      wandb) echo "$(venv_of tools/wandb/requirements.txt)/bin/python" ;;
    esac
  done
}

if [ "${1:-}" = --install ]; then
  "install_$2"
else
  [ $# -gt 0 ] || set -- system python pulumi plugins gcsfuse host
  main "$@"
fi

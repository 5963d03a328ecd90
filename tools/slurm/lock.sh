#!/usr/bin/env bash
# Write tools/slurm/packages.txt: the Debian 12 packages that Slurm's machines and hosts unpack, by name, version,
# sha256 and path in Debian's pool, from this machine's apt lists (apt-get update first).
#
# Left out: what both Debian 12 and Ubuntu 22.04 images have, and what nothing here runs (Python, Perl, Galera).
set -euo pipefail
cd "$(dirname "$0")"

base=(systemd dbus openssh-server sudo iproute2 iputils-ping netbase ca-certificates curl procps psmisc kmod libssl3
  libffi8 libsqlite3-0 libbz2-1.0 liblzma5 libreadline8 zlib1g libncursesw6 libuuid1 libexpat1 libgomp1 libstdc++6
  apt '?essential')
slurm=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge nfs-kernel-server nfs-common)
accounting=(slurmdbd slurm-wlm-mysql-plugin mariadb-server mariadb-client-core)
unused='^(python3|libpython3|media-types|lsb-base|galera|gawk|libmpfr6|libsigsegv2|lib(dbi|config-inifiles)-perl|rsync|libpopt0|socat|lsof)'

nothing=$(mktemp)
trap 'rm -f "$nothing"' EXIT
closure() { # PACKAGE...: print NAME VERSION of all that they need on a machine that has nothing
  apt-get -o Dir::State::status="$nothing" -o APT::Install-Recommends=0 -o Debug::NoLocking=1 --simulate install "$@" |
    sed -n 's/^Inst \(\S*\) (\(\S*\) .*/\1 \2/p' | sort
}
record() { # ARCHIVE: print a line for each NAME VERSION on standard input
  local name version
  while read -r name version; do
    apt-cache show "$name=$version" | awk -v what="$1 $name $version" \
      '/^Filename:/ {path = $2} /^SHA256:/ {hash = $2} /^$/ {exit} END {print what, hash, path}'
  done
}

had=$(closure "${base[@]}")
of_slurm=$(closure "${slurm[@]}" | comm -23 - <(echo "$had") | grep -Ev "$unused")
of_accounting=$(closure "${accounting[@]}" | comm -23 - <(sort <<<"$had"$'\n'"$of_slurm") | grep -Ev "$unused")
{
  echo "# Made by tools/slurm/lock.sh: archive, package, version, sha256, path in Debian's pool."
  record slurm <<<"$of_slurm"
  record accounting <<<"$of_accounting"
} >packages.txt

#!/usr/bin/env bash
# Download Pulumi's official plug-ins for Google Cloud and Kubernetes into Pulumi's own folder.
#
#   tools/official-plugins.sh [--cached] CACHE_DIR
#
# Their versions are those of the locked Python packages, and each must report its own. The vendor publishes no
# checksums for them that could be pinned here. Where its site doesn't answer, rehearsals use the stand-ins of this
# project; the next try is a day later. With --cached, succeed where nothing is to be done.
set -euo pipefail
cached_only=
[ "${1:-}" = --cached ] && { cached_only=yes; shift; }
cache=${1:?}
cd "$(dirname "$0")/.."
case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) exit 0 ;; esac
folder=${PULUMI_HOME:-$HOME/.pulumi}/plugins
unreachable=$cache/plugins-unreachable

missing=()
for name in gcp kubernetes; do
  version=$(sed -n "s/^pulumi-$name==\([^ ]*\).*/\1/p" requirements.txt)
  [ -x "$folder/resource-$name-v$version/pulumi-resource-$name" ] || missing+=("$name-v$version")
done
[ ${#missing[@]} -gt 0 ] || exit 0
[ -z "$(find "$unreachable" -mtime -1 2>/dev/null)" ] || exit 0
[ ! $cached_only ] || exit 1

for plugin in "${missing[@]}"; do
  work=$(mktemp -d "$cache/download.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  url=https://get.pulumi.com/releases/plugins/pulumi-resource-$plugin-linux-$arch.tar.gz
  curl -fsSL --connect-timeout 5 --retry 0 -o "$work/archive" "$url" || {
    touch "$unreachable"
    echo "note: the vendor's site doesn't answer: rehearsals use the stand-in plug-ins instead of ${missing[*]}"
    exit 0
  }
  mkdir "$work/out" && tar -xzf "$work/archive" -C "$work/out"
  program=$work/out/pulumi-resource-${plugin%-v*}
  reported=$("$program" --version 2>&1 || true)
  [ "${reported#v}" = "${plugin##*-v}" ] || {
    echo "note: $plugin reports version '$reported': rehearsals use the stand-in"
    touch "$unreachable"
    exit 0
  }
  mkdir -p "$folder"
  mv "$work/out" "$folder/resource-$plugin"
  echo "note: official plug-in $plugin downloaded; its version is checked, no checksum is pinned"
done

#!/usr/bin/env bash
# Download the official Pulumi CLI in the pinned version, check it, print its folder.
#
#   tools/official-pulumi.sh [--cached] CACHE_DIR
#
# Fail within 5 s where the vendor's site can't be reached: the caller then builds it. With --cached, fail instead
# of downloading.
set -euo pipefail
cached_only=
[ "${1:-}" = --cached ] && { cached_only=yes; shift; }
cache=${1:?}
here=$(cd "$(dirname "$0")" && pwd)
version=$(awk '$1 == "github.com/pulumi/pulumi/sdk/v3" {print $2}' "$here/pulumi/go.mod")
case $(uname -m) in x86_64) arch=x64 ;; aarch64) arch=arm64 ;; *) exit 1 ;; esac
out=$cache/tools/pulumi-official-$version
[ -x "$out/pulumi" ] && { echo "$out"; exit 0; }
[ $cached_only ] && exit 1
site=https://get.pulumi.com/releases/sdk
file=pulumi-$version-linux-$arch.tar.gz
mkdir -p "$cache/tools"
work=$(mktemp -d "$cache/tools/download.XXXXXX")  # there, so that the last step is a rename: whole or not at all
trap 'rm -rf "$work"' EXIT
curl -fsSL --connect-timeout 5 --retry 0 -o "$work/sums" "$site/pulumi-${version#v}-checksums.txt" 2>/dev/null || exit 1
curl -fsSL --connect-timeout 5 -o "$work/$file" "$site/$file" 2>/dev/null || exit 1
(cd "$work" && grep " $file\$" sums | sha256sum --check --quiet) >&2 || { echo "the download of $file doesn't match its checksum" >&2; exit 1; }
mkdir "$work/out"
tar -xzf "$work/$file" -C "$work/out" --strip-components=1
rm -rf "$out"
mv "$work/out" "$out"
echo "note: using the official Pulumi CLI $version, downloaded and checked" >&2
echo "$out"

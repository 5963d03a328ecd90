#!/usr/bin/env bash
# Downloads the official Pulumi CLI in the pinned version, checks it, prints its folder.
#
#   tools/official-pulumi.sh CACHE_DIR
#
# Fails within 5 s, with nothing printed, where the vendor's site can't be reached: the caller then builds it.
set -euo pipefail
cache=${1:?}
here=$(cd "$(dirname "$0")" && pwd)
version=$(awk '$1 == "github.com/pulumi/pulumi/sdk/v3" {print $2}' "$here/pulumi/go.mod")
case $(uname -m) in x86_64) arch=x64 ;; aarch64) arch=arm64 ;; *) exit 1 ;; esac
out=$cache/tools/pulumi-official-$version
[ -x "$out/pulumi" ] && { echo "$out"; exit 0; }
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
echo "$out"

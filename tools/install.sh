#!/usr/bin/env bash
# Build one tool from the Go modules pinned in tools/<name>/go.{mod,sum}, once, and print the folder that holds it.
#
#   tools/install.sh [--cached] NAME
#
# With --cached, fail instead of building. The folder lies in a cache outside the tree; its key is made of the pins.
# Seconds on 2 cores, cold:
#   pulumi 111, pulumi-language-python 25, storage (gcsfuse) 138
#   manifests (of Kueue and JobSet, rendered by kustomize) 35
#   kubernetes (API server, controller manager, scheduler, kubectl) 459
#   queue (etcd, Kueue, JobSet, kwok, and the manifests) 239
#   queue-previous (the Kueue that is upgraded from in a test of `make prove`, and its manifests) 240
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${TPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tpu-pulumi}
cached_only=
[ "${1:-}" = --cached ] && { cached_only=yes; shift; }
name=${1:?"usage: tools/install.sh pulumi|pulumi-language-python|storage|manifests|kubernetes|queue|queue-previous"}
module=$here/$name
[ -f "$module/go.mod" ] || { echo "tools/install.sh: no such tool: $name" >&2; exit 2; }

version_of() { awk -v m="$1" '$1 == m {print $2} $1 == "require" && $2 == m {print $3}' "$module/go.mod" | head -n 1; }

# Its pins and its recipe: another tool's change builds it no second time.
recipe() {
  case $name in
    manifests) cat "$here"/queue/*; sed -n -e '/^source_of()/,/^}/p' -e '/^render()/,/^}/p' "$here/install.sh" ;;
    queue*) cat "$here"/manifests/*; sed -n '/^render()/,/^}/p' "$here/install.sh" ;;
  esac
  sed -n "/^  $name)\$/,/^    ;;/p" "$here/install.sh"
}
key=$( (cat "$module"/*; recipe) | sha256sum | cut -c1-16)
out=$cache/tools/$name-$key
if [ -f "$out/.complete" ]; then
  echo "$out"
  exit 0
fi
[ $cached_only ] && exit 1

command -v go >/dev/null || {
  echo "tools/install.sh: $name has to be built and there is no 'go': install Go 1.26 or newer" >&2
  exit 1
}
mkdir -p "$cache/tools"
exec 9>"$cache/tools/$name.lock"
flock 9
[ -f "$out/.complete" ] && { echo "$out"; exit 0; }
rm -rf "$out"
mkdir -p "$out"
echo "building $name from its pinned Go modules (once; cached in $out)" >&2
cd "$module"
source_of() { # module of tools/queue: print the folder of its sources, without those of what it needs
  local version
  version=$(awk -v m="$1" '$1 == m && NF > 1 {print $2}' "$here/queue/go.mod")
  (cd / && GOFLAGS='' go mod download -json "$1@$version") | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'
}
render() { # kustomize, project, its sources: write the project's manifests, as released
  local work
  # A copy: kustomize takes no path outside of its own folder.
  work=$(mktemp -d)
  cp -r "$3/config" "$work/config"
  "$1" build "$work/config/default" 2>/dev/null >"$out/$2.yaml"
  chmod -R u+w "$work" && rm -rf "$work"
}
# No debug information, which the linker would strip: a tenth of the compile time.
export CGO_ENABLED=0 GOFLAGS="-mod=readonly -trimpath -gcflags=all=-dwarf=false" GOBIN=$out
# gcsfuse needs a newer Go than Debian has; with one Go for all, they share what they compile.
export GOTOOLCHAIN=go1.27.3
case $name in
  pulumi)
    version=$(version_of github.com/pulumi/pulumi/sdk/v3)
    # The Automation API refuses a CLI that can't say its version.
    go install -ldflags "-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=$version" \
      github.com/pulumi/pulumi/pkg/v3/cmd/pulumi
    # The scripts that the Python language host starts live in the SDK's module folder.
    sdk=$(go list -m -f '{{.Dir}}' github.com/pulumi/pulumi/sdk/v3)
    find "$sdk/python/cmd" "$sdk/python/dist" -maxdepth 2 -type f \
      \( -name 'pulumi-language-python-exec' -o -name 'pulumi-analyzer-policy-python' -o -name 'pulumi-resource-pulumi-python' \) \
      -exec install -m 0755 {} "$out/" \;
    ;;
  pulumi-language-python)
    go install -ldflags '-s -w' github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python
    ;;
  storage)
    version=$(version_of github.com/googlecloudplatform/gcsfuse/v3)
    go install -ldflags "-s -w -X github.com/googlecloudplatform/gcsfuse/v3/common.gcsfuseVersion=${version#v}" \
      github.com/googlecloudplatform/gcsfuse/v3
    [ -x "$out/gcsfuse" ] || mv "$out/v3" "$out/gcsfuse"
    ;;
  kubernetes)
    version=$(version_of k8s.io/kubernetes)
    stamp=k8s.io/component-base/version
    # Unstamped, it reports a version that Kueue can't parse, and Kueue exits.
    go install -ldflags "-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=$(cut -d. -f2 <<<"$version") -X $stamp.gitCommit=unknown -X $stamp.gitTreeState=clean -X $stamp.buildDate=2026-01-01T00:00:00Z" \
      k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager \
      k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kubectl
    ;;
  manifests)
    go install -ldflags '-s -w' sigs.k8s.io/kustomize/kustomize/v5
    for project in kueue jobset; do
      render "$out/kustomize" $project "$(source_of sigs.k8s.io/$project)"
    done
    crds=$(source_of k8s.io/autoscaler/cluster-autoscaler/apis)/config/crd
    install -m 0644 "$crds/autoscaling.x-k8s.io_provisioningrequests.yaml" "$out/provisioningrequests.yaml"
    (cd "$out" && sha256sum --quiet --check "$here/queue/manifests.sha256")
    ;;
  queue)
    go install -ldflags '-s -w' go.etcd.io/etcd/server/v3 sigs.k8s.io/jobset \
      sigs.k8s.io/kueue/cmd/kueue sigs.k8s.io/kwok/cmd/kwok
    mv "$out/server" "$out/etcd"
    install -m 0644 "$("$here/install.sh" manifests)"/*.yaml "$out/"
    ;;
  queue-previous)
    go install -ldflags '-s -w' sigs.k8s.io/kueue/cmd/kueue
    render "$("$here/install.sh" manifests)/kustomize" kueue "$(go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)"
    (cd "$out" && sha256sum --quiet --check "$module/manifests.sha256")
    ;;
esac
touch "$out/.complete"
echo "$out"

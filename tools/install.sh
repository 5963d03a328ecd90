#!/usr/bin/env bash
# Puts one tool on disk and prints the folder that holds it.
#
#   tools/install.sh [--cached] pulumi|pulumi-language-python|storage|kubernetes|queue|queue-previous
#
# With --cached it fails instead of building. The official program is used where it is on PATH in the pinned version; else it
# is built from the Go modules pinned in tools/<name>/go.{mod,sum}, once, into a
# cache outside the tree whose key is made of those pins. Cost on 2 cores, cold:
# pulumi 3 min, pulumi-language-python 15 s, storage (gcsfuse) 1 min, kubernetes (API server, controller
# manager, scheduler, kubectl) 5 min, queue (etcd, Kueue, JobSet, kwok, and the manifests of the two) 4 min,
# queue-previous (the Kueue that is upgraded from in a test of `make prove`, and its manifests) 4 min.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${TPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tpu-pulumi}
cached_only=
[ "${1:-}" = --cached ] && { cached_only=yes; shift; }
name=${1:?"usage: tools/install.sh pulumi|pulumi-language-python|storage|kubernetes|queue|queue-previous"}
module=$here/$name
[ -f "$module/go.mod" ] || { echo "tools/install.sh: no such tool: $name" >&2; exit 2; }

version_of() { awk -v m="$1" '$1 == m {print $2} $1 == "require" && $2 == m {print $3}' "$module/go.mod" | head -n 1; }

# Its pins and its recipe: another tool's change builds it no second time.
recipe() { sed -n -e '/^render()/,/^}/p' -e "/^  $name)\$/,/^    ;;/p" "$here/install.sh"; }
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
render() { # writes the manifests of a project, as released
  local kubectl work
  kubectl=$("$here/install.sh" kubernetes)/kubectl
  # A copy: kustomize takes no path outside of its own folder.
  work=$(mktemp -d)
  cp -r "$(go list -m -f '{{.Dir}}' "sigs.k8s.io/$1")/config" "$work/config"
  "$kubectl" kustomize "$work/config/default" 2>/dev/null >"$out/$1.yaml"
  chmod -R u+w "$work" && rm -rf "$work"
}
export CGO_ENABLED=0 GOFLAGS=-mod=readonly GOBIN=$out
case $name in
  pulumi)
    version=$(version_of github.com/pulumi/pulumi/sdk/v3)
    # The Automation API refuses a CLI that can't say its version.
    go install -trimpath -ldflags "-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=$version" \
      github.com/pulumi/pulumi/pkg/v3/cmd/pulumi
    # The scripts that the Python language host starts live in the SDK's module folder.
    sdk=$(go list -m -f '{{.Dir}}' github.com/pulumi/pulumi/sdk/v3)
    find "$sdk/python/cmd" "$sdk/python/dist" -maxdepth 2 -type f \
      \( -name 'pulumi-language-python-exec' -o -name 'pulumi-analyzer-policy-python' -o -name 'pulumi-resource-pulumi-python' \) \
      -exec install -m 0755 {} "$out/" \;
    ;;
  pulumi-language-python)
    go install -trimpath -ldflags '-s -w' github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python
    ;;
  storage)
    version=$(version_of github.com/googlecloudplatform/gcsfuse/v3)
    # gcsfuse asks for a newer Go than Debian or the project needs elsewhere.
    export GOTOOLCHAIN=go1.27.3
    go install -trimpath -ldflags "-s -w -X github.com/googlecloudplatform/gcsfuse/v3/common.gcsfuseVersion=${version#v}" \
      github.com/googlecloudplatform/gcsfuse/v3
    [ -x "$out/gcsfuse" ] || mv "$out/v3" "$out/gcsfuse"
    ;;
  kubernetes)
    version=$(version_of k8s.io/kubernetes)
    stamp=k8s.io/component-base/version
    # Unstamped, it reports a version that Kueue can't parse, and Kueue exits.
    go install -trimpath -ldflags "-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=$(cut -d. -f2 <<<"$version") -X $stamp.gitCommit=unknown -X $stamp.gitTreeState=clean -X $stamp.buildDate=2026-01-01T00:00:00Z" \
      k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager \
      k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kubectl
    ;;
  queue)
    go install -trimpath -ldflags '-s -w' go.etcd.io/etcd/server/v3 sigs.k8s.io/jobset \
      sigs.k8s.io/kueue/cmd/kueue sigs.k8s.io/kwok/cmd/kwok
    mv "$out/server" "$out/etcd"
    render kueue
    render jobset
    crds=$(go list -m -f '{{.Dir}}' k8s.io/autoscaler/cluster-autoscaler/apis)/config/crd
    install -m 0644 "$crds/autoscaling.x-k8s.io_provisioningrequests.yaml" "$out/provisioningrequests.yaml"
    (cd "$out" && sha256sum --quiet --check "$module/manifests.sha256")
    ;;
  queue-previous)
    go install -trimpath -ldflags '-s -w' sigs.k8s.io/kueue/cmd/kueue
    render kueue
    (cd "$out" && sha256sum --quiet --check "$module/manifests.sha256")
    ;;
esac
touch "$out/.complete"
echo "$out"

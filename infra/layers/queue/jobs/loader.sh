# shellcheck shell=bash
# Run startup.sh of the bundle $TPU_BUNDLE in a container, with the program in its arguments.
set -euo pipefail
umask 022
metadata=http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token
mkdir -p /run/tpu && cd /run/tpu
# The metadata server of a node answers a new pod some seconds late.
# https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity#limitations
answer=$(curl -sSf --retry 30 --retry-all-errors --retry-delay 2 --max-time 10 -H 'Metadata-Flavor: Google' "$metadata")
[[ $answer =~ \"access_token\"\ *:\ *\"([^\"]+)\" ]] || { echo "job: the metadata server gave no token" >&2; exit 1; }
fetch() { # OBJECT SHA256
  curl -sSf --retry 10 --retry-all-errors --max-time 60 -o "$2" -K <(echo "header=\"Authorization: Bearer ${BASH_REMATCH[1]}\"") \
    "https://storage.googleapis.com/storage/v1/b/$CHECKPOINT_BUCKET/o/${1//\//%2F}?alt=media" ||
    { echo "job: gs://$CHECKPOINT_BUCKET/$1 can't be read: was it published (tpu publish), and may the pod's account read it?" >&2; exit 1; }
  echo "$2  $2" | sha256sum --check --status || { echo "job: gs://$CHECKPOINT_BUCKET/$1 doesn't match its sha256" >&2; exit 1; }
}
fetch "bundles/manifests/$TPU_BUNDLE" "$TPU_BUNDLE"
script=$(sed -n 's/^\([0-9a-f]\{64\}\)  startup\.sh$/\1/p' "$TPU_BUNDLE")
fetch "bundles/blobs/$script" "$script"
exec bash "$script" "$TPU_BUNDLE" pod "$@"

#!/bin/bash
# Run startup.sh of the bundle in this node's metadata, with these arguments: docs/internals/boot.md.
set -u
umask 022
S=https://storage.googleapis.com D=/opt/tpu/bundles J='Content-Type: application/json'
mkdir -p /run/tpu && cd /run/tpu || exit

md() { curl -sfm 10 --retry 5 --retry-connrefused -H 'Metadata-Flavor: Google' "http://metadata.google.internal/computeMetadata/v1/instance/$1" "${@:2}"; }
gcs() {
  [[ $(md service-accounts/default/token) =~ \"access_token\"\ *:\ *\"([^\"]+) ]]
  curl -sSm 60 --connect-timeout 5 --retry 2 -o answer -K <(echo "header=\"Authorization: Bearer ${BASH_REMATCH[1]-}\"") "$@"
}
report() { # STATE STAGE_STATE WHY
  local state=$1 worker now
  echo "tpu-boot: stage script: $3" >&2
  [[ ! -e ready ]] || { [[ $1 == failed ]] && state=rerun-failed || state=rerunning; }
  worker=$(md attributes/agent-worker-number) || worker=
  now=$(date -u +%FT%TZ)
  local s="\"state\": \"$state\", \"stage\": \"script\"" why="\"why\": \"$3\"" b="\"boot_id\": \"$boot\""
  md guest-attributes/tpu/boot -o answer -X PUT -d "{$s, $b, \"updated_s\": $(date +%s), $why}" || echo 'tpu-boot: guest attribute tpu/boot not written' >&2
  echo "{\"version\": 1, \"node\": \"$node\", \"worker\": ${worker:-null}, \"workers\": null, $b, \"bundle\": \"$bundle\", $s, \"updated\": \"$now\", \"stages\": [{\"name\": \"script\", \"state\": \"$2\", \"attempt\": 1, \"start\": \"$began\", \"end\": \"$now\", \"duration_s\": $SECONDS, \"log_tail\": \"$3\"}]}" >status.json
  printf '%s\r\n' --b "$J" '' "{\"contentType\": \"application/json\", \"metadata\": {$s, \"instance\": \"$id\", $why}}" --b "$J" '' "$(<status.json)" --b-- |
    gcs -H 'Content-Type: multipart/related; boundary=b' --data-binary @- "$S/upload/storage/v1/b/$bucket/o?uploadType=multipart&name=boot%2F$node%2Fworker-${worker:-unknown-$id}.json"
}
fail() { report failed failed "$1"; exit 1; }
good() { echo "$1  $1" | sha256sum -c --status 2>&-; }
fetch() { # OBJECT SHA256 COPY
  local code
  good "$2" || cp "$3" "$2" 2>&-
  until good "$2"; do
    code=$(gcs -w '%{http_code}' "$S/storage/v1/b/$bucket/o/${1//\//%2F}?alt=media") || code+=" (curl: $?)"
    case $code in
      200) mv answer "$2"; good "$2" || fail "gs://$bucket/$1 doesn't match its sha256" ;;
      404) fail "there is no gs://$bucket/$1: run 'tpu publish'" ;;
      *) ((SECONDS < 420)) || fail "gs://$bucket/$1: HTTP $code for 7 min"
        report booting running "waiting for gs://$bucket/$1: HTTP $code"
        sleep 10 ;;
    esac
  done
  mkdir -p "${3%/*}" && cp "$2" "$3.new" && mv "$3.new" "$3" # continues on a full disk
}

began=$(date -u +%FT%TZ) boot=$(</proc/sys/kernel/random/boot_id)
id=$(md id) node=$(md attributes/tpu-slice) bucket=$(md attributes/tpu-bucket) bundle=$(md attributes/tpu-bundle)
[[ $bundle =~ ^[0-9a-f]{64}$ ]] || fail "the node's metadata has no tpu-bundle"
fetch "bundles/manifests/$bundle" "$bundle" "$D/$bundle.manifest"
script=$(sed -n 's/^\([0-9a-f]\{64\}\)  startup\.sh$/\1/p' "$bundle")
[[ $script ]] || fail "bundle $bundle has no startup.sh: run 'tpu publish'"
fetch "bundles/blobs/$script" "$script" "$D/$bundle/startup.sh"
exec bash "$script" "$bundle" "$@"

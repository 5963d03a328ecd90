# shellcheck shell=bash
# bundle: everything that is installed, by content, from the bucket. The metadata names
# the manifest's sha256 and the manifest each file's, so whoever can write to the bucket
# can keep a host from starting but can't change what it runs.

# fetch_blob SHA256 PATH: one file into the current folder; 255 ends xargs at once.
fetch_blob() {
  local code
  [[ ! -f $2 ]] || return 0
  mkdir -p "$(dirname "$2")"
  code=$(gcs_get "$(object "bundles/blobs/$1")?alt=media" "$2.part")
  case $code in
    200) mv "$2.part" "$2" ;;
    404) log "gs://$CHECKPOINT_BUCKET/bundles/blobs/$1 ($2) isn't there: publish the bundle again"; exit 255 ;;
    *) log "gs://$CHECKPOINT_BUCKET/bundles/blobs/$1 ($2): HTTP $code"; exit 1 ;;
  esac
}

# fetch_manifest FILE: the manifest, which must hash to the bundle's id.
fetch_manifest() {
  local code
  code=$(gcs_get "$(object "bundles/manifests/$TPU_BUNDLE")?alt=media" "$1.part")
  case $code in
    200) ;;
    404) fail "no manifest $TPU_BUNDLE in gs://$CHECKPOINT_BUCKET/bundles/manifests: run 'make publish'" ;;
    # 403 too: a grant takes minutes to reach every server.
    *) try_again "manifest $TPU_BUNDLE: HTTP $code" ;;
  esac
  sha256sum --check --strict --quiet <<<"$TPU_BUNDLE  $1.part" || fail "the manifest's content isn't what its name says"
  if grep -Eqv '^[0-9a-f]{64}  [A-Za-z0-9][A-Za-z0-9._+/-]*$' "$1.part" || grep -q '\.\.' "$1.part"; then
    fail "the manifest names a file in a way that no bundle does"
  fi
  mv "$1.part" "$1"
}

stage_bundle() {
  local folder=/opt/tpu/bundles/$TPU_BUNDLE manifest=/opt/tpu/bundles/$TPU_BUNDLE.manifest round code bad
  authorize || try_again "no token"
  mkdir -p "$folder"
  cd "$folder" || exit
  sha256sum --check --status --ignore-missing <<<"$TPU_BUNDLE  $manifest" || fetch_manifest "$manifest"
  export -f log gcs_get object fetch_blob
  # Twice, so that a file damaged on this host is fetched again.
  for round in 1 2; do
    code=0
    xargs --max-procs=8 --max-args=2 bash -euo pipefail -c 'fetch_blob "$@"' fetch <"$manifest" || code=$?
    ((code != 124)) || fail "the bundle isn't whole in the bucket"
    ((code == 0)) || try_again "some files couldn't be fetched"
    bad=$(sha256sum --check --strict --quiet "$manifest" 2>/dev/null) && break
    log "attempt $round: $bad"
    sed -n 's/: FAILED.*//p' <<<"$bad" | xargs --delimiter='\n' --no-run-if-empty rm -f --
    ((round == 1)) || fail "the bucket holds other content than the bundle promises; nothing of it was installed"
  done
  chmod 0755 uv gcsfuse
  ln -sfn "$folder" /opt/tpu/current.new
  mv -T /opt/tpu/current.new /opt/tpu/current
  log "$(wc -l <"$manifest") files, $(du -sh . | cut -f1), all as promised"
}

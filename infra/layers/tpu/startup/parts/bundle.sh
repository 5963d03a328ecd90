# shellcheck shell=bash
# bundle: everything that is installed, by content, from the bucket. The metadata names
# the manifest's sha256 and the manifest each file's: write access to the bucket can keep a host
# from starting but can't change the programs that it runs.

# fetch_missing MANIFEST: download the files that the current folder lacks. Status 2 if the bucket lacks one too,
# 1 if a retry may help. One curl for all: a process and a handshake per file cost more than most files.
fetch_missing() {
  local sha256 code result path outcome=0
  while read -r sha256 path; do
    [[ -f $path ]] || printf 'url = "%s"\noutput = "%s.part"\n' \
      "$STORAGE/storage/v1/b/$CHECKPOINT_BUCKET/$(object "bundles/blobs/$sha256")?alt=media" "$path"
  done <"$1" >"$RUN/bundle.wanted"
  [[ -s $RUN/bundle.wanted ]] || return 0
  # HTTP/1.1, so that each of the eight has a connection to itself.
  gcs_curl --no-progress-meter --parallel --parallel-max 8 --parallel-immediate --http1.1 --create-dirs --config "$RUN/bundle.wanted" \
    --write-out '%{http_code} %{exitcode} %{filename_effective}\n' >"$RUN/bundle.answers" || outcome=1
  while read -r code result path; do
    path=${path%.part}
    case $code.$result in
      200.0) mv "$path.part" "$path" ;;
      404.*) log "$path isn't in gs://$CHECKPOINT_BUCKET/bundles/blobs: publish the bundle again"; outcome=2 ;;
      *) log "$path: HTTP $code, curl's status $result"; ((outcome == 2)) || outcome=1 ;;
    esac
  done <"$RUN/bundle.answers"
  return $outcome
}

# differing MANIFEST: print the paths of the current folder's files that don't match. OpenSSL, which a container
# may lack, uses the processor's own instructions for it, in a fifth of the time.
differing() {
  local sha256 path
  local -a program=(sha256sum)
  local -A found
  ! command -v openssl >/dev/null || program=(openssl dgst -sha256 -r)
  while read -r sha256 path; do found[${path#\*}]=$sha256; done < <(
    cut --delimiter=' ' --fields=3 <"$1" | xargs --delimiter='\n' "${program[@]}"
  )
  while read -r sha256 path; do [[ ${found[$path]:-} == "$sha256" ]] || echo "$path"; done <"$1"
}

# take_over MANIFEST: link what the current bundle has of it, which needs neither a download nor room.
take_over() {
  local current
  current=$(readlink /opt/tpu/current) && [[ $current != "$PWD" && -f $current.manifest ]] || return 0
  (cd "$current" && grep --fixed-strings --line-regexp --file="$current.manifest" "$1" | cut --delimiter=' ' --fields=3 |
    xargs --no-run-if-empty --delimiter='\n' cp --link --no-clobber --parents --target-directory="$OLDPWD") 2>/dev/null || true
}

# code_alone: check that this bundle differs from that of the last complete run in the user's code at most.
code_alone() {
  local -a others=(grep --invert-match '  code\.tar\.gz$')
  [[ -s $RUN/ready ]] && cmp --silent <("${others[@]}" "$RUN/$(<"$RUN/ready")") <("${others[@]}" "$RUN/$TPU_BUNDLE")
}

stage_bundle() {
  local folder=/opt/tpu/bundles/$TPU_BUNDLE manifest=$RUN/$TPU_BUNDLE round code bad
  ! disk_is_full 2>/dev/null || exit 1  # run_stage reports a full disk
  # The loader has checked it against the id.
  if grep -Eqv '^[0-9a-f]{64}  [A-Za-z0-9][A-Za-z0-9._+/-]*$' "$manifest" || grep -q '\.\.' "$manifest"; then
    fail "the manifest has an invalid file name"
  fi
  authorize || try_again "no token"
  mkdir -p "$folder"
  cd "$folder" || exit
  take_over "$manifest"
  # Two rounds, so that a file damaged on this host is fetched again.
  for round in 1 2; do
    code=0
    fetch_missing "$manifest" || code=$?
    ((code != 2)) || fail "the bucket lacks files of the bundle"
    ((code == 0)) || try_again "some files couldn't be fetched"
    bad=$(differing "$manifest")
    [[ $bad ]] || break
    log "attempt $round: these don't match: ${bad//$'\n'/ }"
    xargs --delimiter='\n' rm -f -- <<<"$bad"
    ((round == 1)) || fail "files of the bucket don't match the manifest; nothing was installed"
  done
  chmod 0755 uv
  [[ ! -f gcsfuse ]] || chmod 0755 gcsfuse # a TPU host's
  ln -sfn "$folder" /opt/tpu/current.new
  mv -T /opt/tpu/current.new /opt/tpu/current
  log "$(wc -l <"$manifest") files, $(du -sh . | cut -f1), all match the manifest"
}

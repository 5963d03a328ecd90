# shellcheck shell=bash
# mount-checkpoints: mount the bucket at /mnt/checkpoints, for people to read and write.

# checkpoints_unit HNS: print the service that keeps the bucket mounted. Metadata isn't cached,
# so that a file of another host is visible at once. A folder on a flat bucket is renamed
# object by object, up to rename-dir-limit.
checkpoints_unit() {
  cat <<UNIT
[Unit]
Description=Checkpoint bucket $CHECKPOINT_BUCKET at /mnt/checkpoints
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStartPre=-/bin/umount --lazy --quiet /mnt/checkpoints
ExecStart=/opt/tpu/bundles/$TPU_BUNDLE/gcsfuse --foreground --log-format=text --implicit-dirs --rename-dir-limit=200000 --enable-hns=$1 -o allow_other --file-mode=0666 --dir-mode=0777 --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 $CHECKPOINT_BUCKET /mnt/checkpoints
ExecStopPost=-/bin/umount --lazy --quiet /mnt/checkpoints
Restart=always
RestartSec=1
TimeoutStopSec=20
UNIT
}

# bucket_is_hierarchical: print true or false. By default gcsfuse queries it over gRPC, on another port and
# host than everything else here; the JSON API has the same value.
bucket_is_hierarchical() {
  local code reply=$RUN/layout.json
  code=$(gcs_get 'storageLayout?fields=hierarchicalNamespace' "$reply")
  case $code in
    200) if tr -d ' \n' <"$reply" | grep -q '"enabled":true'; then echo true; else echo false; fi ;;
    404) fail "there is no bucket '$CHECKPOINT_BUCKET'" ;;
    *) try_again "reading the layout of '$CHECKPOINT_BUCKET': HTTP $code" ;;
  esac
}

# try_unprivileged: write, read and rename there, as a logged-in user would, by a user without rights.
try_unprivileged() {
  # shellcheck disable=SC2016
  timeout 30 setpriv --reuid=65534 --regid=65534 --clear-groups bash -euc '
    rm -rf "$1/$2" "$1/$2.renamed"
    mkdir -p "$1/$2"
    echo "$3" >"$1/$2/file"
    [ "$(cat "$1/$2/file")" = "$3" ]
    mv "$1/$2" "$1/$2.renamed"
    rm -r "$1/$2.renamed"
  ' check "/mnt/checkpoints/boot/$TPU_NAME" "mount-check-$WORKER_ID" "$(timestamp)"
}

stage_mount_checkpoints() {
  local hns changed deadline
  authorize || try_again "no token"
  hns=$(bucket_is_hierarchical)
  # A crashed gcsfuse leaves a mount point that can't be read.
  mkdir -p /mnt/checkpoints 2>/dev/null || umount --lazy /mnt/checkpoints
  changed=$(checkpoints_unit "$hns" | write_file /etc/systemd/system/tpu-checkpoints.service)
  [[ -z $changed ]] || systemctl daemon-reload
  # Users of the mount aren't disturbed: a changed unit applies at its next start.
  [[ -z $changed || $(systemctl show --property=MainPID --value tpu-checkpoints.service) == 0 ]] ||
    log "warning: an older gcsfuse still runs; to change over: systemctl restart tpu-checkpoints.service"
  systemctl start tpu-checkpoints.service
  deadline=$((SECONDS + 8))
  until mountpoint --quiet /mnt/checkpoints && try_unprivileged; do
    if ((SECONDS >= deadline)); then
      journalctl --unit=tpu-checkpoints.service --lines=5 --no-pager --output=cat || true
      # A grant takes minutes to reach every server; the service keeps retrying.
      try_again "/mnt/checkpoints can't be written, read and renamed in yet"
    fi
    sleep 0.5
  done
  # Remove the status written before this host knew its number.
  rm -f "/mnt/checkpoints/boot/$TPU_NAME/worker-unknown-$INSTANCE_ID.json"
  log "gs://$CHECKPOINT_BUCKET is at /mnt/checkpoints (hierarchical namespace: $hns)"
}

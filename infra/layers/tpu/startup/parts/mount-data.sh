# shellcheck shell=bash
# mount-data: mount the shared disk, read-only.

stage_mount_data() {
  local name device deadline=$((SECONDS + 60))
  optional tpu-data-disk || skip "the slice has no data disk"
  name=$VALUE
  if mountpoint --quiet /mnt/data; then
    log "/mnt/data is mounted already"
    return
  fi
  mkdir -p /mnt/data
  while :; do
    # TPU VMs call their first data disk persistent-disk-1, whatever its resource's name.
    for device in "/dev/disk/by-id/google-$name" /dev/disk/by-id/google-persistent-disk-1; do
      [[ ! -b $device ]] || break 2
    done
    ((SECONDS < deadline)) ||
      fail "the data disk '$name' didn't appear within 60 s; /dev/disk/by-id has: $(find /dev/disk/by-id -mindepth 1 -printf '%f ' 2>/dev/null || true)"
    sleep 1
  done
  # noload: many hosts share this disk, and none may replay its journal.
  mount -t ext4 -o ro,noload "$device" /mnt/data || try_again "mounting $device failed"
  log "$device is at /mnt/data: $(df --output=used --human-readable /mnt/data | tail --lines=1 | tr -d ' ') used"
}

"""The commands that make a data snapshot from files in the checkpoint bucket.

A machine formats a disk, copies the files onto it and powers off; the disk's snapshot is what `data:snapshot`
names. Hosts mount it as one ext4 on the whole disk, without replaying a journal
(docs/internals/boot.md), so it is unmounted first. The machine reads the bucket by private access and needs
no way to the internet.

https://cloud.google.com/sdk/gcloud/reference/compute/instances/create
https://cloud.google.com/sdk/gcloud/reference/compute/snapshots/create
https://cloud.google.com/sdk/gcloud/reference/storage/rsync
https://cloud.google.com/compute/docs/instances/startup-scripts/linux
"""

from __future__ import annotations

import math
import shlex

from infra.catalog import region_of
from infra.core.names import fitted
from infra.layers.data.settings import DataSettings
from infra.layers.network.names import subnet_id
from infra.layers.network.settings import NetworkSettings
from infra.layers.storage.names import service_account_email
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

_GIB = 1 << 30
_SPARE = 1.05  # inodes, bitmaps and directories of ext4
_LEAST_GIB = 10  # of a balanced persistent disk: https://cloud.google.com/compute/docs/disks/persistent-disks
_MACHINE, _IMAGE, _PUBLISHER = "e2-standard-8", "debian-12", "debian-cloud"  # from memory: it has gcloud
_POLL_S = 15

_FILL = """#!/bin/bash
set -e
export HOME=/root
mkfs.ext4 -q -F -m 0 /dev/disk/by-id/google-data
mount /dev/disk/by-id/google-data /mnt
gcloud storage rsync --recursive {url} /mnt
umount /mnt
poweroff"""


def disk_gib(size_bytes: int) -> int:
    """Return the size of a disk that holds files of so many bytes."""
    return max(_LEAST_GIB, math.ceil(size_bytes * _SPARE / _GIB) + 1)


def commands(settings: Settings, url: str, name: str, zone: str, size_bytes: int) -> str:
    """Return a shell script that makes the snapshot `name` from the objects below `url`."""
    maker, size_gib = fitted(f"{name}-maker"), disk_gib(size_bytes)
    where = [f"--project={settings.project}", f"--zone={zone}"]
    network = []
    if settings.get(NetworkSettings):
        network = [f"--subnet={subnet_id(settings, region_of(zone))}", "--no-address"]
    create = [
        f"--machine-type={_MACHINE}", f"--image-family={_IMAGE}", f"--image-project={_PUBLISHER}", *network,
        f"--service-account={service_account_email(settings)}", "--scopes=cloud-platform",
        f"--create-disk=name={maker}-data,device-name=data,size={size_gib}GB,type=pd-balanced,auto-delete=no",
        f"--metadata=startup-script={_FILL.format(url=url)}",
    ]  # fmt: skip
    gcloud = "gcloud compute"
    status = f"{gcloud} instances describe {maker} {' '.join(where)} --format='value(status)'"
    log = f"{gcloud} instances get-serial-port-output {maker} {' '.join(where)}"
    snapshot = [
        f"--project={settings.project}", f"--source-disk={maker}-data", f"--source-disk-zone={zone}",
        f"--storage-location={settings[StorageSettings].location}",
    ]  # fmt: skip
    return "\n".join([
        f"# A machine that writes a disk of {size_gib} GB and powers off.",
        _lines(f"{gcloud} instances create {maker}", where + create),
        f"# It powers off when the files are there. If it never does, read: {log}",
        f'until [ "$({status})" = TERMINATED ]; do sleep {_POLL_S}; done',
        "# The snapshot; then neither machine nor disk is needed any more.",
        _lines(f"{gcloud} snapshots create {name}", snapshot),
        f"{gcloud} instances delete {maker} {' '.join(where)} --quiet",
        f"{gcloud} disks delete {maker}-data {' '.join(where)} --quiet",
    ])  # fmt: skip


def settings_lines(settings: Settings, name: str, size_bytes: int) -> list[str]:
    """Return the lines of Pulumi.ENV.yaml by which hosts get the snapshot as a disk."""
    data = settings.get(DataSettings) or DataSettings()
    larger = disk_gib(size_bytes) > data.size_gib
    return [f"data:snapshot: {name}", *([f"data:sizeGib: {disk_gib(size_bytes)}"] if larger else [])]


def _lines(command: str, options: list[str]) -> str:
    return " \\\n  ".join([command, *map(shlex.quote, options)])

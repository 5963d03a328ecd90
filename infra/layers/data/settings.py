"""Settings of the data layer."""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.catalog import CATALOG
from infra.settings import rules
from infra.settings.schema import labels_setting, setting

_disk = CATALOG.data_disk


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The training data: a snapshot, made into one read-only disk per zone."""

    snapshot: str | None = setting(
        "snapshot that holds a file system with the data; without it there are no data disks",
        default=None,
        rule=rules.SNAPSHOT,
    )
    disk_prefix: str | None = setting(
        "first part of the disks' names, before the snapshot's; a second environment that reads the same"
        " snapshot in the same project needs one",
        default=None,
        rule=rules.NETWORK_NAME,
    )
    size_gib: int = setting(
        "size of each disk",
        default=1000,
        rule=rules.between(_disk.min_size_gib, _disk.max_size_gib, "GiB"),
    )
    throughput_mibps: int = setting(
        "throughput of each disk, shared by its readers; with more than 20 hosts at least 100 for each;"
        " Google takes a change once in 4 hours",
        default=2400,
        rule=rules.between(_disk.min_throughput_mibps, _disk.max_throughput_mibps, "MiB/s"),
    )
    labels: Mapping[str, str] = labels_setting("labels of the disks")

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
        "snapshot of a disk with the data; without it there are no data disks",
        default=None,
        rule=rules.SNAPSHOT,
    )
    disk_prefix: str | None = setting(
        "prefix of the disks' names, before the snapshot's; required if another environment of the project "
        "reads the same snapshot in the same zone",
        default=None,
        rule=rules.NETWORK_NAME,
    )
    size_gib: int = setting(
        "size of each disk",
        default=1000,
        rule=rules.between(_disk.min_size_gib, _disk.max_size_gib, "GiB"),
    )
    throughput_mibps: int = setting(
        "throughput of each disk, shared by its readers; at least 100 per host above 20 hosts; Google allows "
        "one change in 4 hours",
        default=2400,
        rule=rules.between(_disk.min_throughput_mibps, _disk.max_throughput_mibps, "MiB/s"),
    )
    labels: Mapping[str, str] = labels_setting("labels of the disks")

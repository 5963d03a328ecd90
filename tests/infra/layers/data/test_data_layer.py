"""Declarations of the data layer."""

from typing import Any

import pytest

from tests.infra.recording import run

DISK = "gcp:compute/disk:Disk"


@pytest.mark.parametrize("preview", [True, False])
def test_a_read_only_disk_for_the_zone_in_use(preview: bool) -> None:
    recording = run("data", {"data:labels": {"dataset": "c4"}}, preview=preview)
    assert recording.only(DISK).inputs == {
        "name": "training-data-us-east5-b",
        "zone": "us-east5-b",
        "type": "hyperdisk-ml",
        "snapshot": "projects/my-project/global/snapshots/training-data",
        "size": 1000,
        "provisionedThroughput": 2400,
        "accessMode": "READ_ONLY_MANY",
        "labels": {"dataset": "c4"},
    }
    if not preview:
        assert recording.exports == {
            "diskIds": {"us-east5-b": "projects/my-project/zones/us-east5-b/disks/training-data-us-east5-b"}
        }


@pytest.mark.parametrize("preview", [True, False])
def test_each_zone_has_its_own(preview: bool) -> None:
    slices: list[dict[str, Any]] = [
        {"name": "a", "acceleratorType": "v6e-8", "zones": ["us-east5-a", "us-east5-b"], "count": 4},
        {"name": "b", "acceleratorType": "v6e-16", "zones": ["us-east5-b"]},
    ]
    changes = {"tpu:slices": slices, "data:sizeGib": 4000, "data:throughputMibps": 24000}
    disks = run("data", changes, preview=preview).of(DISK)
    assert [disk.inputs["zone"] for disk in disks] == ["us-east5-a", "us-east5-b"]
    assert {(disk.inputs["size"], disk.inputs["provisionedThroughput"]) for disk in disks} == {(4000, 24000)}


def test_without_a_snapshot_there_is_no_disk() -> None:
    recording = run("data", {"data:snapshot": None, "data:sizeGib": 1000})
    assert not recording.of(DISK)
    assert recording.exports == {"diskIds": {}}

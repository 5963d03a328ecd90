"""Golden names: another layer, or somebody's bill, depends on each of them."""

from ipaddress import ip_network
from typing import Any

import pytest

from infra.core.layer import up_command
from infra.layers.data.names import disk_id, disk_name, snapshot_id
from infra.layers.network.names import DEFAULT_RANGES, network_id, subnet_id
from infra.layers.storage.names import controller_bucket, service_account_email, service_account_id
from infra.settings.schema import Settings
from infra.slices.names import fleet_member
from infra.slices.nodes import nodes, regions, zones
from tests.infra.recording import BASE, parsed


def settings(**changes: Any) -> Settings:
    values = {**BASE, **{key.replace("__", ":"): value for key, value in changes.items()}}
    return parsed(values)


def test_ids_are_paths_and_never_links() -> None:
    base = settings()
    assert network_id(base) == "projects/my-project/global/networks/tpu-training"
    subnet = "projects/my-project/regions/us-east5/subnetworks/tpu-training-us-east5"
    assert subnet_id(base, "us-east5") == subnet
    disk = "projects/my-project/zones/us-east5-b/disks/training-data-us-east5-b"
    assert disk_id(base, "us-east5-b") == disk
    assert snapshot_id(base) == "projects/my-project/global/snapshots/training-data"
    assert service_account_email(base) == "tpu-training@my-project.iam.gserviceaccount.com"
    account = "projects/my-project/serviceAccounts/tpu-training@my-project.iam.gserviceaccount.com"
    assert service_account_id(base) == account


def test_the_controllers_bucket_is_called_after_the_checkpoints() -> None:
    assert controller_bucket(settings()) == "my-project-checkpoints-fleet"
    longest = controller_bucket(settings(storage__bucketName="b" * 63))
    assert len(longest) == 63
    assert longest.startswith("b" * 54 + "-")
    assert longest != controller_bucket(settings(storage__bucketName="b" * 62))


def test_a_snapshot_of_another_project() -> None:
    other = settings(data__snapshot="projects/data-project/global/snapshots/c4-tokens")
    assert snapshot_id(other) == "projects/data-project/global/snapshots/c4-tokens"
    assert disk_name(other, "us-east5-b") == "c4-tokens-us-east5-b"


def test_two_environments_of_one_project_can_read_one_snapshot() -> None:
    second = settings(data__diskPrefix="second")
    assert disk_name(second, "us-east5-b") == "second-training-data-us-east5-b"
    assert disk_id(second, "us-east5-b") == (
        "projects/my-project/zones/us-east5-b/disks/second-training-data-us-east5-b"
    )


def test_long_names_are_cut_and_stay_apart() -> None:
    item, other = (settings(data__snapshot="s" * 62 + end) for end in "ab")
    cut = disk_name(item, "us-east5-b")
    assert len(cut) == 63
    assert cut != disk_name(other, "us-east5-b")
    assert cut == "s" * 54 + "-" + cut[-8:]


@pytest.mark.parametrize(
    ("zone", "worker_id", "name"),
    [
        ("us-east5-b", 0, "tpu-us-east5-b-0"),
        ("europe-west4-a", 15, "tpu-europe-west4-a-15"),
        ("us-central1-ai1a", 3, "tpu-us-central1-ai1a-3"),
    ],
)
def test_fleet_members(zone: str, worker_id: int, name: str) -> None:
    assert fleet_member(zone, worker_id) == name


def fleet(count: int, zones: list[str], **more: Any) -> list[tuple[str, str]]:
    mapping = {"name": "extract", "acceleratorType": "v6e-8", "zones": zones, "count": count, **more}
    return [
        (node.name, node.zone)
        for node in nodes(settings(storage__allowCrossRegion=True, tpu__slices=[mapping]))
    ]


def test_a_fleet_is_dealt_out_over_its_zones() -> None:
    assert fleet(3, ["us-east5-a", "us-east5-b"]) == [
        ("tpu-us-east5-a-0", "us-east5-a"),
        ("tpu-us-east5-b-0", "us-east5-b"),
        ("tpu-us-east5-a-1", "us-east5-a"),
    ]
    assert fleet(1, ["us-east5-a"], firstWorkerId=100) == [("tpu-us-east5-a-100", "us-east5-a")]


@pytest.mark.parametrize("count", range(1, 9))
def test_a_larger_fleet_keeps_the_nodes_it_has(count: int) -> None:
    zones = ["us-east5-a", "us-east5-b", "us-central1-b"]
    smaller, larger = fleet(count, zones), fleet(count + 1, zones)
    assert larger[:-1] == smaller
    assert len(set(larger)) == count + 1


def test_a_slice_without_count_keeps_its_own_name() -> None:
    assert [node.name for node in nodes(settings())] == ["train"]
    assert zones(settings()) == ("us-east5-b",)
    assert regions(settings()) == ("us-east5",)


def test_default_ranges_do_not_overlap() -> None:
    networks = [ip_network(text) for text in DEFAULT_RANGES.values()]
    assert not any(a.overlaps(b) for i, a in enumerate(networks) for b in networks[:i])


def test_commands_name_the_project_that_they_mean() -> None:
    assert up_command("network", "dev") == "tpu up dev network"
    assert up_command("tpu", "prod") == "tpu up prod tpu"

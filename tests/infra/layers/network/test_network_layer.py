"""Declarations of the network layer."""

from typing import Any

import pulumi
import pytest

from tests.infra.recording import UNKNOWN, run

NETWORK = "gcp:compute/network:Network"
SUBNET = "gcp:compute/subnetwork:Subnetwork"
FIREWALL = "gcp:compute/firewall:Firewall"
CORP = "projects/host-project/global/networks/corp"
CORP_SUBNET = "projects/host-project/regions/us-east5/subnetworks/corp-east5"
EXISTING: dict[str, Any] = {
    "network:existingNetwork": CORP,
    "network:existingSubnets": {"us-east5": CORP_SUBNET},
}
TWO_REGIONS: dict[str, Any] = {
    "storage:allowCrossRegion": True,
    "tpu:slices": [
        {"name": "f", "acceleratorType": "v6e-8", "zones": ["us-east5-b", "europe-west4-a"], "count": 2}
    ],
}


@pytest.mark.parametrize("preview", [True, False])
def test_a_network_with_large_packets(preview: bool) -> None:
    recording = run("network", preview=preview)
    # The description is part of the test: a new one replaces the network and all that stands on it.
    assert recording.only(NETWORK).inputs == {
        "name": "tpu-training",
        "description": "Network of the TPU slices",
        "autoCreateSubnetworks": False,
        "mtu": 8896,
        "routingMode": "REGIONAL",
    }
    assert recording.only(SUBNET).inputs == {
        "name": "tpu-training-us-east5",
        "network": UNKNOWN if preview else "projects/my-project/global/networks/tpu-training",
        "region": "us-east5",
        "ipCidrRange": "10.64.32.0/20",
        "privateIpGoogleAccess": True,
        "logConfig": {
            "aggregationInterval": "INTERVAL_10_MIN",
            "flowSampling": 0.5,
            "metadata": "INCLUDE_ALL_METADATA",
        },
    }


@pytest.mark.parametrize("preview", [True, False])
def test_hosts_reach_each_other_and_people_come_through_iap(preview: bool) -> None:
    recording = run("network", preview=preview)
    inside = recording.named(FIREWALL, "tpu-training-slice-internal").inputs
    assert inside["sourceTags"] == inside["targetTags"] == ["tpu-slice"]
    assert inside["allows"] == [
        {"protocol": "tcp", "ports": ["8080", "8470-8475", "8476", "8482", "32768-60999"]},
        {"protocol": "icmp"},
    ]
    ssh = recording.named(FIREWALL, "tpu-training-ssh").inputs
    assert ssh["sourceRanges"] == ["35.235.240.0/20"]
    assert ssh["allows"] == [{"protocol": "tcp", "ports": ["22"]}]
    assert ssh["targetTags"] == ["tpu-slice"]
    assert ssh["logConfig"] == {"metadata": "INCLUDE_ALL_METADATA"}
    rules = recording.of(FIREWALL)
    assert len(rules) == 2
    assert all(rule.inputs["direction"] == "INGRESS" for rule in rules)
    assert not any("0.0.0.0/0" in rule.inputs.get("sourceRanges", []) for rule in rules)


def test_ssh_can_be_closed_or_moved() -> None:
    closed = run("network", {"network:sshSourceRanges": []})
    assert [rule.name for rule in closed.of(FIREWALL)] == ["tpu-training-slice-internal"]
    moved = run("network", {"network:sshSourceRanges": ["203.0.113.0/24"]})
    assert moved.named(FIREWALL, "tpu-training-ssh").inputs["sourceRanges"] == ["203.0.113.0/24"]


def test_one_subnet_per_region_in_use() -> None:
    recording = run("network", TWO_REGIONS)
    assert {
        resource.inputs["region"]: resource.inputs["ipCidrRange"] for resource in recording.of(SUBNET)
    } == {
        "europe-west4": "10.64.48.0/20",
        "us-east5": "10.64.32.0/20",
    }
    assert recording.exports["subnetIds"] == {
        "europe-west4": "projects/my-project/regions/europe-west4/subnetworks/tpu-training-europe-west4",
        "us-east5": "projects/my-project/regions/us-east5/subnetworks/tpu-training-us-east5",
    }


def test_a_range_of_ones_own() -> None:
    recording = run("network", {"network:subnetRanges": {"us-east5": "172.16.0.0/24"}})
    assert recording.only(SUBNET).inputs["ipCidrRange"] == "172.16.0.0/24"


@pytest.mark.parametrize("preview", [True, False])
def test_cloud_nat_is_a_choice(preview: bool) -> None:
    assert not run("network", preview=preview).of("gcp:compute/router:Router")
    recording = run("network", {**TWO_REGIONS, "network:cloudNat": True}, preview=preview)
    routers = recording.of("gcp:compute/router:Router")
    assert [router.name for router in routers] == ["tpu-training-europe-west4", "tpu-training-us-east5"]
    nats = recording.of("gcp:compute/routerNat:RouterNat")
    assert [nat.inputs["router"] for nat in nats] == [router.inputs["name"] for router in routers]
    assert nats[0].inputs == {
        "name": "tpu-training-europe-west4-nat",
        "router": "tpu-training-europe-west4",
        "region": "europe-west4",
        "natIpAllocateOption": "AUTO_ONLY",
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
        "logConfig": {"enable": True, "filter": "ERRORS_ONLY"},
    }


@pytest.mark.parametrize("preview", [True, False])
def test_an_existing_network_is_used_as_it_is(preview: bool) -> None:
    recording = run("network", EXISTING, preview=preview)
    assert recording.reads == [(NETWORK, CORP)]
    assert not recording.of(NETWORK)
    assert not recording.of(SUBNET)
    assert {rule.inputs["network"] for rule in recording.of(FIREWALL)} == {CORP}
    assert {rule.inputs["project"] for rule in recording.of(FIREWALL)} == {"host-project"}
    assert recording.exports == {"networkId": CORP, "subnetIds": {"us-east5": CORP_SUBNET}, "mtu": 8896}


def test_rules_can_be_left_to_the_networks_owner() -> None:
    assert not run("network", {**EXISTING, "network:manageFirewall": False}).of(FIREWALL)


@pytest.mark.parametrize("preview", [True, False])
def test_an_existing_network_with_small_packets_is_refused(preview: bool) -> None:
    with pytest.raises(pulumi.RunError) as caught:
        run("network", EXISTING, preview=preview, network_mtu=1460)
    assert str(caught.value) == (
        f"network:existingNetwork: {CORP} has MTU 1460, and network:mtu is 8896; write network:mtu: 1460, "
        "or raise the network's (its machines must be restarted): "
        "gcloud compute networks update corp --mtu=8896"
    )
    for answered in (1460, 0):  # 0: nobody ever set it
        accepted = run("network", {**EXISTING, "network:mtu": 1460}, preview=preview, network_mtu=answered)
        assert accepted.exports["mtu"] == 1460


def test_outputs() -> None:
    assert run("network").exports == {
        "networkId": "projects/my-project/global/networks/tpu-training",
        "subnetIds": {"us-east5": "projects/my-project/regions/us-east5/subnetworks/tpu-training-us-east5"},
        "mtu": 8896,
    }

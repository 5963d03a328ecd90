"""GKE's node pools: what is refused of those with TPUs, and the instance groups that count nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cloud_front import PROJECT, CloudFront

from infra.google.failures import Kind, classify

P, REGION, ZONE = f"projects/{PROJECT}", "us-east5", "us-east5-b"
LOCATION = f"container.googleapis.com/v1beta1/{P}/locations/{REGION}"
CLUSTER = f"{LOCATION}/clusters/pools"
GROUPS = f"compute.googleapis.com/compute/beta/{P}/zones/{ZONE}/instanceGroupManagers"
SLICE: dict[str, Any] = {
    "name": "v6e",
    "initialNodeCount": 4,
    "locations": [ZONE],
    "maxPodsConstraint": {"maxPodsPerNode": "15"},
    "config": {"machineType": "ct6e-standard-4t"},
    "placementPolicy": {"type": "COMPACT", "tpuTopology": "4x4"},
}

FLEX: dict[str, Any] = {
    "initialNodeCount": 0,
    "autoscaling": {"enabled": True, "maxNodeCount": 4},
    "config": {
        "machineType": "ct6e-standard-4t",
        "flexStart": True,
        "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
    },
}


def done(cloud: CloudFront, method: str, url: str, body: Any = None) -> None:
    reply = cloud.request(method, url, body)
    assert reply.status == 200, reply.body
    cloud.let_pass(300)
    ended = cloud.request("GET", f"{LOCATION}/operations/{reply.json['name']}").json
    assert (ended["status"], ended.get("error")) == ("DONE", None)


@pytest.fixture(name="cluster", scope="module")
def _cluster(cloud: CloudFront) -> Iterator[str]:
    cloud.done(cloud.compute("POST", "global/networks", {"name": "gke", "autoCreateSubnetworks": False}))
    subnet = {
        "name": "gke", "network": "global/networks/gke", "ipCidrRange": "10.129.0.0/20",
        "secondaryIpRanges": [
            {"rangeName": "pods", "ipCidrRange": "192.168.64.0/22"},
            {"rangeName": "services", "ipCidrRange": "192.168.80.0/22"},
        ],
    }  # fmt: skip
    cloud.done(cloud.compute("POST", f"regions/{REGION}/subnetworks", subnet))
    ranges = {"clusterSecondaryRangeName": "pods", "servicesSecondaryRangeName": "services"}
    body = {
        "name": "pools",
        "network": "gke",
        "subnetwork": "gke",
        "initialNodeCount": 1,
        "locations": [ZONE],
        "ipAllocationPolicy": ranges,
        "releaseChannel": {"channel": "STABLE"},
    }
    done(cloud, "POST", f"{LOCATION}/clusters", {"cluster": body})
    yield CLUSTER
    done(cloud, "DELETE", CLUSTER)
    assert cloud.request("GET", GROUPS).json.get("items", []) == []


def sizes(cloud: CloudFront) -> list[int]:
    return sorted(item["targetSize"] for item in cloud.request("GET", GROUPS).json["items"])


def test_a_slice_is_counted_in_its_zones_instance_group(cloud: CloudFront, cluster: str) -> None:
    assert cloud.request("GET", cluster).json["currentMasterVersion"] == "1.35.6-gke.1250000", "the channel's"
    done(cloud, "POST", f"{cluster}/nodePools", {"nodePool": SLICE})
    pool = cloud.request("GET", f"{cluster}/nodePools/v6e").json
    assert len(pool["instanceGroupUrls"]) == 1
    assert sizes(cloud) == [1, 4]
    assert pool["config"]["diskType"] == "hyperdisk-balanced"
    done(cloud, "DELETE", f"{cluster}/nodePools/v6e")
    assert sizes(cloud) == [1]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"initialNodeCount": 2}, "The number of nodes of a 4x4 slice must be 4."),
    ({"initialNodeCount": 5}, "The number of nodes of a 4x4 slice must be 4."),
    ({"initialNodeCount": 0, "autoscaling": {"enabled": True, "maxNodeCount": 2}},
     "Maximum node count 2 is not a valid size"),
    ({"initialNodeCount": 0, "autoscaling": {"enabled": True, "totalMaxNodeCount": 4}},
     "Maximum node count 0 is not a valid size of TPU pod slice with topology 4x4"),
    ({**FLEX, "locations": ["us-central1-b"]}, "is not available in zone us-central1-b"),
    ({**FLEX, "config": {"machineType": "ct6e-standard-4t"}, "queuedProvisioning": {"enabled": True}},
     "Queued provisioning of TPUs requires flex-start."),
    ({**FLEX, "management": {"autoRepair": True}}, "auto-repair to be disabled"),
    ({**FLEX, "autoscaling": {}}, "autoscaling from 0 nodes"),
    ({**FLEX, "autoscaling": {"enabled": True, "minNodeCount": 1, "maxNodeCount": 4}}, "autoscaling from 0"),
    ({**FLEX, "config": {"machineType": "ct6e-standard-4t", "flexStart": True}}, "affinity NO_RESERVATION"),
    ({"placementPolicy": {"tpuTopology": "2x2"}, "initialNodeCount": 1}, "2x2 is not supported"),
    ({"placementPolicy": {"tpuTopology": "4x6"}}, "4x6 is not supported"),
    ({"config": {"machineType": "ct6e-standard-8t"}}, "not supported by ct6e-standard-8t"),
    ({"config": {"machineType": "n2-standard-4"}}, "doesn't support TPU topologies"),
    ({"config": {"machineType": "ct6e-standard-4t", "diskType": "pd-ssd"}}, "Disk type pd-ssd"),
    ({"config": {"machineType": "ct6e-standard-4t", "spot": True, "flexStart": True}}, "can't both be set"),
    ({"locations": ["us-east5-c"]}, "not available in zone us-east5-c"),
    ({"maxPodsConstraint": {"maxPodsPerNode": "5"}}, "between 8 and 256"),
    ({"maxPodsConstraint": {"maxPodsPerNode": "110"}}, "IP space of 192.168.64.0/22 is exhausted"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=str)
def test_a_slice_that_google_would_refuse(
    cloud: CloudFront, cluster: str, change: dict[str, Any], message: str
) -> None:
    reply = cloud.request("POST", f"{cluster}/nodePools", {"nodePool": {**SLICE, "name": "wrong", **change}})
    assert reply.status in (400, 403), reply.body
    assert message in reply.error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initialClusterVersion": "1.27.3-gke.100"}, 'Master version "1.27.3-gke.100" is unsupported.'),
        ({"locations": ["us-central1-b"]}, "us-central1-b is not in the cluster's location"),
        (
            {"ipAllocationPolicy": {"clusterSecondaryRangeName": "none"}},
            'Pod secondary range "none" not found',
        ),
    ],
)
def test_a_cluster_that_google_would_refuse(
    cloud: CloudFront, cluster: str, change: dict[str, Any], message: str
) -> None:
    body = {"name": "wrong", "network": "gke", "subnetwork": "gke", "initialNodeCount": 1, **change}
    reply = cloud.request("POST", f"{LOCATION}/clusters", {"cluster": body})
    assert (reply.status, message in reply.error) == (400, True), reply.body


def test_an_update_keeps_what_only_google_sets_and_numbers_are_numbers(
    cloud: CloudFront, cluster: str
) -> None:
    """As the official provider sends it; what was stored otherwise was read by none of its next requests."""
    before = cloud.request("GET", cluster).json["controlPlaneEndpointsConfig"]["dnsEndpointConfig"][
        "endpoint"
    ]
    endpoints = {"dnsEndpointConfig": {"allowExternalTraffic": True}, "ipEndpointsConfig": {"enabled": False}}
    done(cloud, "PUT", cluster, {"update": {"desiredControlPlaneEndpointsConfig": endpoints}})
    dns = cloud.request("GET", cluster).json["controlPlaneEndpointsConfig"]["dnsEndpointConfig"]
    assert dns == {"allowExternalTraffic": True, "endpoint": before}
    pool = f"{cluster}/nodePools/default-pool"
    done(cloud, "PUT", pool, {"name": "default-pool", "diskSizeGb": "300", "machineType": "e2-standard-4"})
    done(cloud, "PUT", pool, {"name": "default-pool", "resourceLabels": {"labels": {"team": "a"}}})
    done(cloud, "PUT", pool, {"name": "default-pool", "taints": {}})
    config = cloud.request("GET", pool).json["config"]
    assert (config["diskSizeGb"], config["machineType"]) == (300, "e2-standard-4")
    assert (config["resourceLabels"], config.get("taints")) == ({"team": "a"}, None)


def test_a_cluster_takes_one_change_at_a_time(cloud: CloudFront, cluster: str) -> None:
    both = {"desiredShieldedNodes": {"enabled": True}, "desiredReleaseChannel": {"channel": "RAPID"}}
    reply = cloud.request("PUT", cluster, {"update": both})
    assert (reply.status, "Exactly one update" in reply.json["error"]["message"]) == (400, True)
    done(cloud, "PUT", cluster, {"update": {"desiredDefaultEnablePrivateNodes": True}})
    assert cloud.request("GET", cluster).json["networkConfig"]["defaultEnablePrivateNodes"] is True


@pytest.mark.parametrize("change", [{"machineType": "ct6e-standard-8t"}, {"locations": ["us-east5-a"]}])
def test_a_slice_gets_no_other_machines_and_no_other_zone(
    cloud: CloudFront, cluster: str, change: dict[str, Any]
) -> None:
    done(cloud, "POST", f"{cluster}/nodePools", {"nodePool": SLICE})
    reply = cloud.request("PUT", f"{cluster}/nodePools/v6e", change)
    assert (reply.status, f"{next(iter(change))} of a TPU slice" in reply.body.decode()) == (400, True)
    done(cloud, "DELETE", f"{cluster}/nodePools/v6e")


def test_a_pool_in_another_zone_has_its_nodes_there(cloud: CloudFront, cluster: str) -> None:
    pool = {"name": "moving", "initialNodeCount": 2, "locations": [ZONE]}
    done(cloud, "POST", f"{cluster}/nodePools", {"nodePool": pool})
    done(cloud, "PUT", f"{cluster}/nodePools/moving", {"locations": ["us-east5-a"]})
    (url,) = cloud.request("GET", f"{cluster}/nodePools/moving").json["instanceGroupUrls"]
    assert "/zones/us-east5-a/" in url
    assert sizes(cloud) == [1]
    done(cloud, "DELETE", f"{cluster}/nodePools/moving")


FAMILY, PREEMPTIBLE = "TPUS-PER-TPU-FAMILY-per-project-region", "PREEMPTIBLE-TPU-V6E-per-project-region"


@pytest.mark.parametrize(
    ("spot", "name", "refused_as"),
    [(False, FAMILY, "TPUS_PER_TPU_FAMILY"), (True, PREEMPTIBLE, "PREEMPTIBLE_TPU_V6E")],
)
def test_chips_count_for_compute_engines_quota_and_not_for_the_tpu_apis(
    cloud: CloudFront, cluster: str, spot: bool, name: str, refused_as: str
) -> None:
    pool = {**SLICE, "name": "over", "config": {**SLICE["config"], "spot": spot}}
    cloud.control.set_quota(name, REGION, 15)
    reply = cloud.request("POST", f"{cluster}/nodePools", {"nodePool": pool})
    assert reply.status == 200
    cloud.let_pass(300)
    ended = cloud.request("GET", f"{LOCATION}/operations/{reply.json['name']}").json
    assert "[GCE_QUOTA_EXCEEDED]: Instance 'gke-pools-over-0' creation failed" in ended["error"]["message"]
    failure = classify(ended["error"]["message"], None)
    assert (failure.kind, failure.about) == (Kind.QUOTA, refused_as)
    cloud.control.set_quota(name, REGION, 16)
    done(cloud, "POST", f"{cluster}/nodePools", {"nodePool": {**pool, "name": "within"}})
    done(cloud, "DELETE", f"{cluster}/nodePools/within")
    cloud.control.set_quota(name, REGION, 8192)

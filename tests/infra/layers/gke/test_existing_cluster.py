"""A cluster that somebody else made: read, checked, and never owned."""

from typing import Any

import pulumi
import pytest

from infra.engine import refusals
from infra.errors import SettingsError
from infra.layers.gke import pools
from infra.layers.gke.layer import LAYER
from tests.infra.recording import BASE, Recording, parsed, run

CLUSTER, POOL = "gcp:container/cluster:Cluster", "gcp:container/nodePool:NodePool"
ID = "projects/my-project/locations/us-east5/clusters/theirs"
FIT: dict[str, Any] = {
    "name": "theirs",
    "network": "projects/my-project/global/networks/up",
    "enableAutopilot": False,
    "ipAllocationPolicy": {"clusterIpv4CidrBlock": "10.4.0.0/14"},
    "workloadIdentityConfig": {"workloadPool": "my-project.svc.id.goog"},
    "addonsConfig": {"gcsFuseCsiDriverConfig": {"enabled": True}},
    "controlPlaneEndpointsConfig": {
        "dnsEndpointConfig": {"allowExternalTraffic": True, "endpoint": "gke-1.us-east5.gke.goog"}
    },
    "nodePools": [{"name": "cpu", "nodeConfig": {"machineType": "e2-standard-4"}}],
}
SETTINGS: dict[str, Any] = {
    "gke:existingCluster": True,
    "gke:clusterName": "theirs",
    "gke:tpuPools": [{"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b"}],
}


def up(preview: bool = False, **read: Any) -> Recording:
    return run("gke", SETTINGS, preview=preview, read={**FIT, **read})


@pytest.mark.parametrize("preview", [True, False])
def test_its_pools_are_made_and_it_is_read_alone(preview: bool) -> None:
    recording = up(preview)
    assert recording.reads == [(CLUSTER, ID)]
    assert recording.of(CLUSTER) == []
    assert [pool.name for pool in recording.of(POOL)] == ["train-0"]
    assert recording.only(POOL).inputs["cluster"] == "theirs"
    assert recording.of("gcp:compute/subnetwork:Subnetwork") == []
    assert recording.exports["endpoint"] == "gke-1.us-east5.gke.goog"


@pytest.mark.parametrize("preview", [True, False])
@pytest.mark.parametrize(
    ("read", "problem", "fix"),
    [
        ({"enableAutopilot": True}, "Autopilot", "name a Standard cluster"),
        (
            {"network": "https://www.googleapis.com/compute/v1/projects/host/global/networks/theirs"},
            "its network is projects/host/global/networks/theirs",
            "network:existingNetwork: projects/host/global/networks/theirs",
        ),
        ({"ipAllocationPolicy": {}}, "VPC-native", "name a VPC-native cluster"),
        ({"workloadIdentityConfig": None}, "Workload Identity", "--workload-pool=my-project.svc.id.goog"),
        ({"addonsConfig": {}}, "FUSE driver", "--update-addons=GcsFuseCsiDriver=ENABLED"),
        ({"controlPlaneEndpointsConfig": {}}, "DNS endpoint", "--enable-dns-access"),
        (
            {"nodePools": [{"name": "tpu", "nodeConfig": {"machineType": "ct6e-standard-4t"}}]},
            "no nodes without TPUs",
            "gcloud container node-pools create cpu --cluster=theirs",
        ),
    ],
)
def test_a_plan_names_what_it_lacks(read: dict[str, Any], problem: str, fix: str, preview: bool) -> None:
    with pytest.raises(pulumi.RunError) as refused:
        up(preview, **read)
    assert f"gke:existingCluster: {ID} can't be used as it is:" in str(refused.value)
    assert problem in str(refused.value)
    assert fix in str(refused.value).partition("    fix: ")[2]


def test_all_misses_are_named_at_once() -> None:
    with pytest.raises(pulumi.RunError) as refused:
        up(addonsConfig={}, workloadIdentityConfig=None)
    assert str(refused.value).count("    fix: gcloud container clusters update theirs ") == 2


def test_settings_of_our_own_cluster_are_refused_beside_it() -> None:
    with pytest.raises(SettingsError) as refused:
        parsed({**BASE, **SETTINGS, "gke:version": "1.35", "gke:cpuPoolNodes": 3})
    assert str(refused.value).count("a value beside existingCluster") == 2
    with pytest.raises(SettingsError, match="gke:clusterName = nothing"):
        parsed({**BASE, "gke:existingCluster": True})


def test_its_price_and_its_id_are_not_ours() -> None:
    settings = parsed({**BASE, **SETTINGS})
    assert [row.what for row in pools.rows(settings)] == ["train"]
    assert list(LAYER.at_google(settings)) == [f"{ID}/nodePools/train-0"]


def test_a_destroy_is_not_refused_for_its_protection() -> None:
    read = {
        "type": CLUSTER,
        "urn": "urn:pulumi:dev::gke::x::existing",
        "inputs": {"deletionProtection": True},
    }
    assert list(refusals.against("dev", "gke", [{**read, "external": True}])) == []
    assert len(list(refusals.against("dev", "gke", [read]))) == 1

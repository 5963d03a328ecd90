"""A cluster that somebody else made: read, checked, and never owned."""

from typing import Any

import pulumi
import pytest

from infra.engine import refusals
from infra.errors import SettingsError
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.layers.gke import pools
from infra.layers.gke.layer import LAYER
from tests.infra.recording import BASE, Recording, parsed, run

CLUSTER, POOL = "gcp:container/cluster:Cluster", "gcp:container/nodePool:NodePool"
ID = "projects/my-project/locations/us-east5/clusters/theirs"
SUBNET = "projects/my-project/regions/us-east5/subnetworks/theirs"
FIT: dict[str, Any] = {
    "name": "theirs",
    "networkConfig": {"network": "projects/my-project/global/networks/tpu-training", "subnetwork": SUBNET},
    "ipAllocationPolicy": {"useIpAliases": True},
    "workloadIdentityConfig": {"workloadPool": "my-project.svc.id.goog"},
    "addonsConfig": {"gcsFuseCsiDriverConfig": {"enabled": True}},
    "controlPlaneEndpointsConfig": {
        "dnsEndpointConfig": {"allowExternalTraffic": True, "endpoint": "gke-1.us-east5.gke.goog"}
    },
    "nodePools": [{"name": "cpu", "config": {"machineType": "e2-standard-4"}}],
}
SETTINGS: dict[str, Any] = {
    "gke:existingCluster": True,
    "gke:clusterName": "theirs",
    "gke:tpuPools": [{"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b"}],
}


class Google:
    """GKE's API with one cluster, or none; its other clients get nothing."""

    def __init__(self) -> None:
        self.cluster: dict[str, Any] | None = FIT
        self.subnet: dict[str, Any] | Kind = {"privateIpGoogleAccess": True}
        self.requests: list[str] = []

    def json(self, _: object, method: str, url: str, *more: object) -> dict[str, Any]:
        self.requests.append(f"{method} {url}")
        if self.cluster is None:
            raise RequestError(Failure(Kind.MISSING, "Not found"))
        if "/subnetworks/" not in url:
            return self.cluster
        if isinstance(self.subnet, Kind):
            raise RequestError(Failure(self.subnet, "refused"))
        return self.subnet


@pytest.fixture(autouse=True)
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    google = Google()
    monkeypatch.setattr("infra.google.client.Client.json", lambda *given: google.json(*given))
    return google


def up(preview: bool = False, into: list[Recording] | None = None) -> Recording:
    return run("gke", SETTINGS, preview=preview, into=into)


@pytest.mark.parametrize("preview", [True, False])
def test_its_pools_are_made_and_it_is_read_alone(google: Google, preview: bool) -> None:
    recording = up(preview)
    assert google.requests == [
        f"GET https://container.googleapis.com/v1/{ID}",
        f"GET https://compute.googleapis.com/compute/v1/{SUBNET}",
    ]
    assert recording.reads == []
    assert recording.of(CLUSTER) == []
    assert [pool.name for pool in recording.of(POOL)] == ["train-0"]
    assert recording.only(POOL).inputs["cluster"] == "theirs"
    assert recording.of("gcp:compute/subnetwork:Subnetwork") == []
    assert recording.exports["endpoint"] == "gke-1.us-east5.gke.goog"


@pytest.mark.parametrize("preview", [True, False])
@pytest.mark.parametrize(
    ("read", "problem", "fix"),
    [
        ({"autopilot": {"enabled": True}}, "an Autopilot cluster", "name a Standard cluster"),
        (
            {"networkConfig": {"network": "projects/host/global/networks/theirs", "subnetwork": SUBNET}},
            "of network projects/host/global/networks/theirs",
            "network:existingNetwork: projects/host/global/networks/theirs",
        ),
        ({"ipAllocationPolicy": {}}, "routes-based", "name a VPC-native cluster"),
        ({"workloadIdentityConfig": None}, "workload pool none", "--workload-pool=my-project.svc.id.goog"),
        ({"addonsConfig": {}}, "without that driver", "--update-addons=GcsFuseCsiDriver=ENABLED"),
        ({"controlPlaneEndpointsConfig": {}}, "closed to the outside", "--enable-dns-access"),
        (
            {"nodePools": [{"name": "tpu", "config": {"machineType": "ct6e-standard-4t"}}]},
            "without CPU nodes",
            "gcloud container node-pools create cpu --cluster=theirs",
        ),
    ],
)
def test_a_plan_names_what_it_lacks_before_anything_is_made(
    google: Google, read: dict[str, Any], problem: str, fix: str, preview: bool
) -> None:
    google.cluster = {**FIT, **read}
    recordings: list[Recording] = []
    with pytest.raises(pulumi.RunError) as refused:
        up(preview, recordings)
    assert f"1 problem in Pulumi.dev.yaml:\n  gke:clusterName = theirs, {problem}: " in str(refused.value)
    assert fix in str(refused.value).partition("    fix: ")[2]
    assert not [item for item in recordings[0].resources if item.type.startswith("gcp:")]


@pytest.mark.parametrize(("version", "fits"), [("1.32.9-gke.1000", False), ("1.33.0-gke.1712000", True)])
def test_flex_start_needs_its_version(google: Google, version: str, fits: bool) -> None:
    google.cluster = {**FIT, "currentMasterVersion": version}
    pool = {**SETTINGS["gke:tpuPools"][0], "flexStart": True}
    if fits:
        run("gke", {**SETTINGS, "gke:tpuPools": [pool]}, preview=True)
        return
    with pytest.raises(pulumi.RunError, match=r"flex-start from 1\.33 on") as refused:
        run("gke", {**SETTINGS, "gke:tpuPools": [pool]}, preview=True)
    assert "gcloud container clusters upgrade theirs --master --cluster-version=1.33" in str(refused.value)
    assert [pool.name for pool in up(preview=True).of(POOL)] == ["train-0"]


def test_all_misses_are_named_at_once(google: Google) -> None:
    google.cluster = {**FIT, "addonsConfig": {}, "workloadIdentityConfig": None}
    with pytest.raises(pulumi.RunError) as refused:
        up()
    assert str(refused.value).count("    fix: gcloud container clusters update theirs ") == 2


@pytest.mark.parametrize(("subnet", "warned"), [({}, True), (Kind.PERMISSION, False)])  # of a host project
def test_a_subnetwork_without_private_google_access_is_a_warning(
    google: Google, subnet: dict[str, Any] | Kind, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warnings.append)
    google.subnet = subnet
    assert up().of(POOL)
    command = "networks subnets update theirs --project=my-project --region=us-east5 --enable-private-ip"
    assert [command in text for text in warnings] == [True] * warned


def test_one_that_is_not_in_the_region_is_named_with_the_list(google: Google) -> None:
    google.cluster = None
    message = (
        "gke:clusterName = theirs: there is no such cluster in us-east5\n"
        "    fix: write the name and gke:region of one that is listed: "
        "gcloud container clusters list --project=my-project"
    )
    with pytest.raises(pulumi.RunError) as refused:
        up(preview=True)
    assert message in str(refused.value)


def test_settings_of_our_own_cluster_are_refused_beside_it() -> None:
    with pytest.raises(SettingsError) as refused:
        parsed({**BASE, **SETTINGS, "gke:version": "1.35", "gke:cpuPoolNodes": 3})
    assert str(refused.value).count("a value beside existingCluster") == 2
    with pytest.raises(SettingsError, match="gke:clusterName = nothing"):
        parsed({**BASE, "gke:existingCluster": True})


def test_its_price_and_its_id_are_not_ours() -> None:
    settings = parsed({**BASE, **SETTINGS})
    assert [row.what for row in pools.rows(settings)] == ["pool train"]
    assert list(LAYER.at_google(settings)) == [f"{ID}/nodePools/train-0"]


def test_a_destroy_is_not_refused_for_its_protection() -> None:
    read = {
        "type": CLUSTER,
        "urn": "urn:pulumi:dev::gke::x::existing",
        "inputs": {"deletionProtection": True},
    }
    assert list(refusals.against("dev", "gke", [{**read, "external": True}])) == []
    assert len(list(refusals.against("dev", "gke", [read]))) == 1

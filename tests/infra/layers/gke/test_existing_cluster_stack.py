"""A cluster that somebody else made gets TPU pools and is never owned: an emulated cloud, the real CLI."""

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.infra.lab import PROJECT, SETTINGS, Lab
from tests.limits import until
from tests.proofs.warm import Warm

pytestmark = [pytest.mark.prove, pytest.mark.slow]
REGION, WITHOUT_ASKING = "us-east5", ("--yes", "--skip-preview")
PLACE = f"projects/{PROJECT}/locations/{REGION}/clusters/theirs"
THEIRS = """\
  gke:existingCluster: true
  gke:clusterName: theirs
  gke:tpuPools:
    - {name: train, acceleratorType: v6e-8, zone: us-east5-b, spot: true}
"""
ELSEWHERE = "gke:region: us-central1\n  storage:allowCrossRegion: true"
RANGES = {"pods": "192.168.64.0/20", "services": "192.168.80.0/22"}
CLUSTER: dict[str, Any] = {
    "name": "theirs",
    "network": "tpu-training",
    "subnetwork": "theirs",
    "initialNodeCount": 1,
    "locations": ["us-east5-b"],
    "ipAllocationPolicy": {
        "useIpAliases": True, "clusterSecondaryRangeName": "pods", "servicesSecondaryRangeName": "services",
    },
    "nodeConfig": {"machineType": "e2-standard-4"},
}  # fmt: skip
MENDED = {
    "--workload-pool=": {"desiredWorkloadIdentityConfig": {"workloadPool": f"{PROJECT}.svc.id.goog"}},
    "--update-addons=": {"desiredAddonsConfig": {"gcsFuseCsiDriverConfig": {"enabled": True}}},
    "--enable-dns-access": {
        "desiredControlPlaneEndpointsConfig": {"dnsEndpointConfig": {"allowExternalTraffic": True}}
    },
}
"""What the printed options of `gcloud container clusters update` request."""


@pytest.fixture(name="lab", scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    place = tmp_path_factory.mktemp("lab")
    lab = Lab(place)
    warm = Warm(place / "bin", place / "home", lab.environment)
    lab.environment["PATH"] = warm.path
    lab.settings.write_text(SETTINGS + THEIRS)
    lab.infra("up", "dev", "storage", "network", *WITHOUT_ASKING)
    subnet = {
        "name": "theirs",
        "network": f"projects/{PROJECT}/global/networks/tpu-training",
        "ipCidrRange": "10.129.0.0/20",
        "secondaryIpRanges": [{"rangeName": name, "ipCidrRange": cidr} for name, cidr in RANGES.items()],
    }
    send(lab, f"compute.googleapis.com/compute/v1/projects/{PROJECT}/regions/{REGION}/subnetworks", subnet)
    send(lab, f"container.googleapis.com/v1/{PLACE.rpartition('/')[0]}", {"cluster": CLUSTER})
    until(lambda: lab.cloud.world.directory[PLACE]["status"] == "RUNNING")
    yield lab
    warm.close()
    lab.close()


def send(lab: Lab, url: str, body: Any, method: str = "POST") -> None:
    answer = lab.request(method, url, body)
    assert answer.ok, answer.text
    if url.startswith("container"):
        name = answer.json()["name"]
        operation = f"container.googleapis.com/v1/{PLACE.rpartition('/clusters')[0]}/operations/{name}"
        until(lambda: lab.request("GET", operation).json()["status"] == "DONE")


def pools(lab: Lab) -> set[str]:
    names = (name.partition(f"{PLACE}/nodePools/") for name in lab.cloud.world.directory)
    return {pool for _, _, pool in names if pool}


def test_pools_come_and_go_and_the_cluster_stays_as_it_is(lab: Lab) -> None:
    lab.settings.write_text(SETTINGS + THEIRS)
    # As it was made, it is refused with a command for each miss; these commands mend it.
    refused = lab.tpu("plan", "dev", "gke", fine=False)
    assert "3 problems in Pulumi.dev.yaml:" in refused
    assert "Traceback" not in refused
    update = f"fix: gcloud container clusters update theirs --project={PROJECT} --location={REGION}"
    assert {option for option in MENDED if f"{update} {option}" in refused} == set(MENDED)
    for change in MENDED.values():
        send(lab, f"container.googleapis.com/v1/{PLACE}", {"update": change}, "PUT")
        until(lambda: lab.cloud.world.directory[PLACE]["status"] == "RUNNING")

    before = deepcopy(lab.cloud.world.directory[PLACE])
    assert re.search(r"\+ +gcp:container/nodePool:NodePool +train-0", lab.tpu("plan", "dev", "gke"))
    lab.infra("up", "dev", "gke", *WITHOUT_ASKING)
    assert pools(lab) == {"default-pool", "train-0"}
    assert lab.cloud.world.directory[PLACE] == before
    kinds = {resource["type"] for resource in lab.state("gke")["resources"]}
    assert "gcp:container/nodePool:NodePool" in kinds
    assert "gcp:container/cluster:Cluster" not in kinds
    lab.pulumi("gke", "preview", "-s", "dev", "--refresh", "--expect-no-changes")

    lab.infra("down", "dev", "gke", *WITHOUT_ASKING)
    assert pools(lab) == {"default-pool"}
    assert lab.cloud.world.directory[PLACE] == before


@pytest.mark.parametrize(
    ("old", "new", "name", "region"),
    [
        ("clusterName: theirs", "clusterName: thiers", "thiers", REGION),
        ("gke:tpuPools", f"{ELSEWHERE}\n  gke:tpuPools", "theirs", "us-central1"),
    ],
)
def test_another_name_or_region_is_one_message_with_the_next_command(
    lab: Lab, old: str, new: str, name: str, region: str
) -> None:
    changed = THEIRS.replace(old, new).replace("us-east5-b", f"{region}-b")
    lab.settings.write_text(SETTINGS + changed)
    before = dict(lab.cloud.world.directory)
    listed = f"gcloud container clusters list --project={PROJECT}"
    for refused in (
        lab.tpu("plan", "dev", "gke", fine=False),
        lab.infra("up", "dev", "gke", *WITHOUT_ASKING, fine=False),
    ):
        assert f"gke:clusterName = {name}: there is no such cluster in {region}\n" in refused
        assert f"fix: write the name and gke:region of one that is listed: {listed}\n" in refused
        assert "Traceback" not in refused
    assert lab.cloud.world.directory == before

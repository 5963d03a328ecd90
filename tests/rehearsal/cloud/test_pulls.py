"""Pulls of images by the nodes of a cluster: reached, allowed, there."""

from __future__ import annotations

from typing import Any

import pytest

from infra.layers.queue.versions import IMAGES
from rehearsal.cloud.core.errors import NotEmulatedError
from rehearsal.cloud.core.world import Lags, World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.services.container.pulls import Pulls
from tests.rehearsal.cloud.test_iam import StillClock, account, grant

PROJECT = "wire-test"
SUBNET = f"projects/{PROJECT}/regions/us-east5/subnetworks/nodes"
NETWORK = f"projects/{PROJECT}/global/networks/net"
REMOTE, OWN = (f"projects/{PROJECT}/locations/us-east5/repositories/{name}" for name in ("mirror", "images"))
NODES = account("nodes")
CLUSTER = {
    "location": "us-east5",
    "privateClusterConfig": {"enablePrivateNodes": True},
    "networkConfig": {"network": NETWORK, "subnetwork": SUBNET},
}
POOL = {"config": {"serviceAccount": NODES}, "networkConfig": {"enablePrivateNodes": True}}
KUEUE = IMAGES["kueue"]
MIRRORED = KUEUE.replace("registry.k8s.io", f"us-east5-docker.pkg.dev/{PROJECT}/mirror")
JOB = f"us-east5-docker.pkg.dev/{PROJECT}/images/workload@sha256:{'0' * 64}"


@pytest.fixture(name="world")
def _world() -> World:
    directory: dict[str, Any] = {
        f"projects/{PROJECT}/serviceAccounts/{NODES}": {"email": NODES},
        SUBNET: {"privateIpGoogleAccess": True},
        OWN: {"mode": "STANDARD_REPOSITORY"},
        REMOTE: {
            "mode": "REMOTE_REPOSITORY",
            "remoteRepositoryConfig": {"commonRepository": {"uri": "https://registry.k8s.io"}},
        },
    }
    clock = StillClock()
    lags = Lags(grant_s=0, account_s=0)
    return World(PROJECT, "123", clock, lags=lags, monotonic_s=clock.now, directory=directory)


def refusal(world: World, image: str, *readable: str, pool: dict[str, Any] = POOL) -> str:
    iam = Iam(world, "owner@example.com")
    for repository in readable:
        grant(iam, repository, "roles/artifactregistry.reader", f"serviceAccount:{NODES}")
    return Pulls(world, iam).refusal(image, CLUSTER, pool)


def test_private_nodes_pull_from_a_remote_repository_and_from_the_projects_own(world: World) -> None:
    assert refusal(world, MIRRORED, REMOTE) == ""
    assert refusal(world, JOB, OWN) == ""
    assert refusal(world, f"mirror.gcr.io/library/debian@sha256:{'0' * 64}") == ""


@pytest.mark.parametrize("image", [KUEUE, "docker.io/library/debian:12", "quay.io/a/b:1"])
def test_private_nodes_reach_no_registry_of_others(world: World, image: str) -> None:
    assert "dial tcp 192.0.2.53:443: i/o timeout" in refusal(world, image)


def test_cloud_nat_of_the_network_and_region_is_a_way_out(world: World) -> None:
    nat = {"name": "nat", "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES"}
    other = f"projects/{PROJECT}/regions/us-east1/routers/r"
    world.directory[other] = {"network": NETWORK, "nats": [nat]}
    assert "i/o timeout" in refusal(world, KUEUE)
    world.directory[f"projects/{PROJECT}/regions/us-east5/routers/r"] = {"network": "x/other", "nats": [nat]}
    assert "i/o timeout" in refusal(world, KUEUE)
    world.directory[f"projects/{PROJECT}/regions/us-east5/routers/r"] = {"network": NETWORK, "nats": [nat]}
    assert refusal(world, KUEUE) == ""


def test_so_are_external_addresses(world: World) -> None:
    assert refusal(world, KUEUE, pool={**POOL, "networkConfig": {"enablePrivateNodes": False}}) == ""


def test_without_private_google_access_not_even_googles_registries_answer(world: World) -> None:
    world.directory[SUBNET]["privateIpGoogleAccess"] = False
    assert "i/o timeout" in refusal(world, MIRRORED, REMOTE)


@pytest.mark.parametrize(("image", "readable"), [(MIRRORED, OWN), (JOB, REMOTE)])
def test_nodes_read_the_repository_that_was_granted_and_no_other(
    world: World, image: str, readable: str
) -> None:
    text = refusal(world, image, readable)
    assert '403 Forbidden: denied: Permission "artifactregistry.repositories.downloadArtifacts"' in text


def test_what_isnt_there_isnt_found(world: World) -> None:
    unknown = MIRRORED.partition("@")[0] + f"@sha256:{'0' * 64}"
    assert refusal(world, unknown, REMOTE).endswith(": not found")
    iam = Iam(world, "owner@example.com")
    grant(iam, f"projects/{PROJECT}", "roles/artifactregistry.reader", f"serviceAccount:{NODES}")
    gone = JOB.replace("/images/", "/gone/")
    assert 'Repository "gone" not found' in Pulls(world, iam).refusal(gone, CLUSTER, POOL)
    assert "403 Forbidden" in Pulls(world, iam).refusal(JOB.replace(PROJECT, "theirs"), CLUSTER, POOL)


def test_an_upstream_that_nobody_knows_is_refused_loudly(world: World) -> None:
    world.directory[REMOTE]["remoteRepositoryConfig"]["commonRepository"]["uri"] = "https://quay.io"
    with pytest.raises(NotEmulatedError, match="from quay"):
        refusal(world, MIRRORED, REMOTE)

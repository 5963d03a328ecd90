"""Pods to the emulated cloud: whom policies name, what the metadata server answers; requests' permissions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.doorway import Doorway
from rehearsal.cloud.door.faults import Faults
from rehearsal.cloud.door.requestlog import RequestLog
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.machines.metadata import Guest, MetadataServer
from rehearsal.cloud.machines.pods import PodGuests, principal
from rehearsal.cloud.services.container.access import permission

POOL = "p.svc.id.goog"
ALL = f"principalSet://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/{POOL}"
TRAINER = principal("1", POOL, "team", "trainer")
GOOGLE = "trainer@p.iam.gserviceaccount.com"
ACCOUNT = f"projects/p/serviceAccounts/{GOOGLE}"
TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
BODY = {
    "address": "127.0.0.1", "node": "n", "namespace": "team", "account": "trainer", "zone": "us-east5-b",
    "machine_type": "n2-standard-4", "cluster": "tpu", "location": "us-east5", "workload_pool": POOL,
    "google_account": "", "node_account": "nodes@p.iam.gserviceaccount.com",
}  # fmt: skip


@pytest.fixture(name="world")
def _world() -> World:
    return World("p", "1", VirtualClock(1.0))


@pytest.fixture(name="iam")
def _iam(world: World) -> Iam:
    for account in (GOOGLE, BODY["node_account"]):
        world.directory[f"projects/p/serviceAccounts/{account}"] = {}
    return Iam(world, "owner@example.com")


@pytest.mark.parametrize(
    ("member", "is_so"),
    [
        (TRAINER, True),
        (f"{ALL}/namespace/team", True),
        (f"{ALL}/*", True),
        (f"serviceAccount:{POOL}[team/trainer]", True),
        (f"{ALL}/namespace/tea", False),
        (f"serviceAccount:{POOL}[team/train]", False),
        (principal("1", POOL, "other", "trainer"), False),
        (f"{ALL.replace(POOL, 'q.svc.id.goog')}/*", False),
    ],
)
def test_a_policy_names_a_pods_account(iam: Iam, member: str, is_so: bool) -> None:
    iam.create(ACCOUNT, [{"role": "roles/iam.workloadIdentityUser", "members": [member]}])
    assert iam.allowed(TRAINER, "iam.serviceAccounts.getAccessToken", ACCOUNT) is is_so


class NoMachines:
    def guest(self, address: str) -> Guest | None:
        return None

    async def changed(self) -> None: ...


@pytest.fixture(name="pods")
async def _pods(world: World, iam: Iam) -> AsyncIterator[tuple[PodGuests, Any]]:
    guests = PodGuests(world, NoMachines())
    door = Doorway(world, Faults(world.clock), RequestLog())
    app: web.Application = MetadataServer(world, guests, iam, door).app()
    async with TestClient(TestServer(app, host="127.0.0.1")) as client:
        yield guests, client


@pytest.mark.parametrize(
    ("more", "who"),
    [({}, TRAINER), ({"google_account": GOOGLE}, GOOGLE), ({"workload_pool": ""}, BODY["node_account"])],
)
async def test_whose_token_a_pod_gets(iam: Iam, pods: Any, more: dict[str, str], who: str) -> None:
    guests, client = pods
    iam.create(ACCOUNT, [{"role": "roles/iam.workloadIdentityUser", "members": [TRAINER]}])
    await guests.join(BODY | more)
    answer = await (await client.get(TOKEN, headers={"Metadata-Flavor": "Google"})).json(content_type=None)
    token = iam.find_token(answer["access_token"])
    assert token is not None
    assert token.principal == who
    await guests.leave(BODY)
    assert (await client.get(TOKEN, headers={"Metadata-Flavor": "Google"})).status == 404


async def test_a_pod_that_may_not_be_its_google_account_is_refused(pods: Any) -> None:
    guests, client = pods
    await guests.join(BODY | {"google_account": GOOGLE})
    answer = await client.get(TOKEN, headers={"Metadata-Flavor": "Google"})
    assert answer.status == 403
    assert "iam.serviceAccounts.getAccessToken" in await answer.text()


@pytest.mark.parametrize(
    ("sent", "needed"),
    [
        (("", "pods", "", "watch"), "container.pods.list"),
        (("", "pods", "log", "get"), "container.pods.getLogs"),
        (("apps", "deployments", "scale", "patch"), "container.deployments.updateScale"),
        (("apiextensions.k8s.io", "customresourcedefinitions", "", "create"),
         "container.customResourceDefinitions.create"),
        (("rbac.authorization.k8s.io", "clusterroles", "", "escalate"), "container.clusterRoles.escalate"),
        (("kueue.x-k8s.io", "clusterqueues", "status", "patch"), "container.thirdPartyObjects.update"),
        (("jobset.x-k8s.io", "jobsets", "", "deletecollection"), "container.thirdPartyObjects.delete"),
        (("resource.k8s.io", "resourceclaims", "", "get"), None),
        (("", "", "", "get"), None),
    ],
)  # fmt: skip
def test_which_permission_a_request_needs(sent: tuple[str, str, str, str], needed: str | None) -> None:
    assert permission(*sent) == needed

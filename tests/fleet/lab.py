"""A fleet's members on an emulated Google Cloud.

Everything between the controller and the cloud is real: its requests, the front door with its faults, the
APIs, the controller's bucket. What isn't: machines do nothing, and Google's clock, which the controllers here
go by, runs faster. A fleet needs no Pulumi but for its stack's id, which is given; `tests/fleet/lab_stack.py`
adds a stack that Pulumi works on.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import requests
from aiohttp import web

from fleet import store
from fleet.controller import Controller
from fleet.environment import Environment
from fleet.observation import Observation
from fleet.store import BucketStore
from fleet.zones import Zones
from infra.catalog import region_of
from infra.core import names
from infra.engine.named import StackState
from infra.engine.settings import parse
from infra.google import client
from infra.layers.tpu import startup
from infra.settings.schema import Settings
from infra.settings.sources import as_pulumi_hands_it_over
from infra.slices.names import bundle_blob, bundle_manifest
from infra.slices.nodes import Node, nodes
from rehearsal.cloud.config import CloudConfig
from rehearsal.hosts.spec import HostSpec
from tests.emulated import Emulated, PretendedHosts, url
from tests.fleet.asking import Asking
from tests.fleet.conftest import ZONES
from tests.limits import HANG_S, until

PROJECT, OWNER, BUCKET = "wire-test", "owner@example.com", "wire-test-checkpoints"
CONTROLLERS = f"{BUCKET}-fleet"
STACK = "1a2b3c4"
P, BUNDLE = f"projects/{PROJECT}", "ab" * 32
ACCOUNT = f"tpu-training@{PROJECT}.iam.gserviceaccount.com"
NETWORK = f"{P}/global/networks/tpu-training"
REGIONS = tuple(sorted({region_of(zone) for zone in ZONES}))
SUBNETS = {region: f"{P}/regions/{region}/subnetworks/tpu-training-{region}" for region in REGIONS}
FLEET: dict[str, Any] = {
    "name": "extract", "acceleratorType": "v6e-8", "zones": list(ZONES), "count": len(ZONES), "spot": True,
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "pulumi:disable-default-providers": ["*"],
    "gcp:project": PROJECT,
    "storage:bucketName": BUCKET,
    "storage:location": "us-east5",
    "storage:allowCrossRegion": True,
    "tpu:bundle": BUNDLE,
    "tpu:slices": [FLEET],
}
LABELS = names.labels("dev", "tpu")


def settings(*slices: Mapping[str, Any]) -> Settings:
    """The settings of the lab, with other slices than its fleet of eight, one a zone."""
    config = {**CONFIG, "tpu:slices": list(slices)} if slices else CONFIG
    return parse("dev", as_pulumi_hands_it_over(config, "Pulumi.dev.yaml"), "Pulumi.dev.yaml")


class Machines(PretendedHosts):
    """Machines that say which of them were told to end while they ran, though nobody had asked for it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go: set[str] = set()  # nodes that a user has deleted
        self.slow: set[str] = set()  # nodes whose machines neither start nor end for now
        self.healthy_deleted: list[str] = []

    async def boot(self, spec: HostSpec) -> None:
        while spec.node in self.slow:
            await asyncio.sleep(0.01)
        await super().boot(spec)

    async def power_off(self, name: str) -> None:
        node = name.rpartition("-w")[0]
        if name in self.on and node not in self.may_go:
            self.healthy_deleted.append(node)
        while node in self.slow:
            await asyncio.sleep(0.01)
        await super().power_off(name)


class Lab(Emulated):
    """The cloud, for clients that can't be given Google's names: /HOST/PATH of `url` is PATH of HOST."""

    def __init__(self, folder: Path, rate: float = 200.0, apis: tuple[str, ...] = ()) -> None:
        """`rate`: of Google's clock; `apis`: further ones that are on."""
        self.folder = folder
        self.ahead_s = 0.0  # of Google's clock, for those who keep the fleet
        self.hosts: Machines
        on = ("compute.googleapis.com", "tpu.googleapis.com", "storage.googleapis.com", *apis)
        super().__init__(folder, PROJECT, Machines(), clock_rate=rate, enabled_apis=on)
        self.token = self.token_of(lifetime_s=1e9)
        self.environment = {
            "GOOGLE_OAUTH_ACCESS_TOKEN": self.token,
            "LAB_TPU": f"{self.url}/tpu.googleapis.com",
            "LAB_STORAGE": f"{self.url}/storage.googleapis.com",
        }
        self._furnish()

    async def _open(self, config: CloudConfig) -> None:
        await super()._open(config)
        # Looks follow each other here without the seconds between them.
        self.cloud.storage.limit.now = count(step=60).__next__
        self.url = url(await self.served(self._handle))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """Uploads by Pulumi's provider stand under the origin, whatever its base is."""
        _, host, path = request.raw_path.split("/", 2)
        if host == "upload":
            host, path = "storage.googleapis.com", f"upload/{path}"
        return await self.forward(request, host, f"/{path}")

    # The cloud

    def now_s(self) -> float:
        """Google's clock, as those know it who keep the fleet."""
        return self.cloud.world.clock.now() + self.ahead_s

    def everyone(self) -> dict[str, dict[str, Any]]:
        """The truth about all nodes: each one's resource by its name."""
        return {item.id: dict(item.body) for item in self.cloud.nodes.all()}

    def node(self, name: str) -> dict[str, Any] | None:
        """The truth about a node: its resource, if it exists."""
        return self.everyone().get(name)

    def state(self, name: str) -> str:
        """Google's word for a node; empty where there is none."""
        return str((self.node(name) or {}).get("state", ""))

    def create(self, *members: Node, stack: str = STACK, opened: Environment | None = None) -> None:
        """Make nodes as a controller of this stack would, and wait until they are READY."""
        environment = opened or self.fleet(stack=stack)
        for member in members:
            url = f"tpu.googleapis.com/v2/{P}/locations/{member.zone}/nodes"
            self.request("POST", url, environment.body(member), nodeId=member.name)
        self.until(lambda: all(self.state(member.name) == "READY" for member in members))

    def delete(self, *names: str) -> None:
        """Delete nodes as a user would at Google, and wait until they are gone."""
        self.settle()
        for name in names:
            self.hosts.may_go.add(name)
            if node := self.node(name):
                url, send = (
                    f"{self.url}/tpu.googleapis.com/v2/{node['name']}",
                    {"Authorization": f"Bearer {self.token}"},
                )
                answer = requests.delete(url, headers=send)
                # A controller's own deletion may be under way, or just done.
                assert answer.ok or answer.status_code == 404 or "is DELETING" in answer.text, answer.text
        self.until(lambda: not self.everyone().keys() & set(names))
        self.hosts.may_go.clear()

    def preempt(self, *names: str) -> None:
        """Take nodes' machines away."""
        for name in names:
            self.call(self.cloud.nodes.preempt(name, notice=False))
        self.until(lambda: all(self.state(name) == "PREEMPTED" for name in names))

    def says_that_its_boot_failed(self, node: str, stage: str = "data") -> None:
        """A node's first worker says so, in the bucket and through its metadata server."""
        about = {"name": f"boot/{node}/worker-0.json", "metadata": {"state": "failed", "stage": stage}}
        parts = (("application/json", json.dumps(about)), ("application/json", "{}"))
        body = "".join(f"--part\r\nContent-Type: {kind}\r\n\r\n{text}\r\n" for kind, text in parts)
        self.request(
            "POST", f"storage.googleapis.com/upload/storage/v1/b/{BUCKET}/o", f"{body}--part--\r\n".encode(),
            {"Content-Type": "multipart/related; boundary=part"}, uploadType="multipart",
        )  # fmt: skip
        (machine,) = (item for item in self.cloud.nodes.all() if item.id == node)
        status = {"state": "failed", "updated_s": self.now_s()}
        machine.guest_attributes[0].agent_writes("tpu", "boot", json.dumps(status))
        self.hosts.may_go.add(node)

    def begin_anew(self) -> None:
        """No nodes and no faults, and controllers and workers that have no past."""
        for rule in self.cloud.faults.report():
            self.cloud.faults.lift(rule["id"])
        self.hosts.slow.clear()
        self.delete(*self.everyone())
        for bucket in (CONTROLLERS, BUCKET):
            listed = self.request("GET", f"storage.googleapis.com/storage/v1/b/{bucket}/o")
            for item in listed.get("items", ()):
                if not item["name"].startswith("bundles/"):
                    path = f"storage.googleapis.com/storage/v1/b/{bucket}/o/{quote(item['name'], safe='')}"
                    self.request("DELETE", path)
        self.hosts.healthy_deleted.clear()
        self.ahead_s = 0.0

    @property
    def deleted(self) -> Counter[str]:
        """Requests for deletions, by the state in which each found its node."""
        return Counter(self.cloud.nodes.deleted)

    def settle(self) -> None:
        """Wait until all operations on nodes have ended, but for those of slow machines."""
        passing = {"CREATING", "DELETING"}
        self.until(
            lambda: (
                not any(
                    item["state"] in passing and name not in self.hosts.slow
                    for name, item in self.everyone().items()
                )
            )
        )

    until = staticmethod(until)

    def requested(self, method: str, since: int = 0) -> list[dict[str, Any]]:
        """The requests of a method that came to the front door."""
        entries: list[dict[str, Any]] = self.cloud.requests.since(since)["requests"]
        return [entry for entry in entries if entry["method_id"].endswith(method)]

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **query: str
    ) -> Any:
        """A request of the owner's to /HOST/PATH; its JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        send = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        answer = requests.request(method, f"{self.url}/{path}", params=query, data=data, headers=send)
        assert answer.ok, answer.text
        return answer.json() if answer.content else {}

    # Who keeps the fleet

    def fleet(
        self, meant: Settings | None = None, asking: Asking | None = None, stack: str = STACK
    ) -> Environment:
        """An environment as a command finds it."""
        meant = meant or settings()
        return Environment(meant, nodes(meant), asking or self.asking(), StackState(stack, {}))

    def asking(self) -> Asking:
        """The fleet's own way to ask."""
        return Asking(PROJECT, BUCKET, self)

    def controller(self, opened: Environment, members: Collection[Node] = ()) -> Controller:
        """Return a controller that leads, by Google's clock, whoever holds the lease."""
        actor = Zones(opened.google, opened.owner, opened.body, self.now_s, opened.limits.heartbeat_timeout_s)
        with mock.patch.object(store, "runs", return_value=False):
            return Controller(
                list(members or opened.members), opened.google, actor,
                BucketStore(opened.google, opened.stack.id, self.now_s), opened.limits, opened.owner,
                everyone=opened.members, spec=opened.spec,
            )  # fmt: skip

    def keep(
        self, controller: Controller, done: Callable[[Observation], object], limit_s: float = HANG_S
    ) -> list[Observation]:
        """Steps until something holds of one; all of them."""
        looks, end = [controller.step()], time.monotonic() + limit_s
        while not done(looks[-1]):
            assert time.monotonic() < end, [
                str(decision) for observation in looks[-2:] for decision in observation.decisions
            ]
            time.sleep(0.03)
            looks.append(controller.step())
        return looks

    def all_ready(self, names: Iterable[str], controller: Controller) -> bool:
        """Return whether nodes are READY, and their controller has seen it."""
        everyone = self.everyone()
        ready = all(everyone.get(name, {}).get("state") == "READY" for name in names)
        return (
            ready and not controller.busy and not any(map(controller.state.open, controller.state.attempts))
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """As the user whose Google this is."""
        mapping: dict[str, Any] = {"TPU": client.TPU, "STORAGE": client.STORAGE}
        with mock.patch.dict(os.environ, self.environment), mock.patch.multiple(client, **mapping):
            as_user()
            yield

    def _furnish(self) -> None:
        """Create the resources that nodes need."""
        directory = self.cloud.world.directory
        directory[f"{P}/serviceAccounts/{ACCOUNT}"] = {"email": ACCOUNT}
        network = {"name": "tpu-training", "autoCreateSubnetworks": False, "mtu": 8896}
        self._insert("global/networks", network)
        for number, region in enumerate(REGIONS):
            name = SUBNETS[region].rpartition("/")[2]
            subnet = {"name": name, "network": NETWORK, "ipCidrRange": f"10.64.{number}.0/24"}
            self._insert(f"regions/{region}/subnetworks", {**subnet, "privateIpGoogleAccess": True})
        storage = "storage.googleapis.com"
        for bucket in (BUCKET, CONTROLLERS):
            self.request("POST", f"{storage}/storage/v1/b", {"name": bucket}, project=PROJECT)
        for name in (bundle_manifest(BUNDLE), bundle_blob(startup.script_sha256())):
            media = {"uploadType": "media", "name": name}
            self.request("POST", f"{storage}/upload/storage/v1/b/{BUCKET}/o", b"", **media)

    def _insert(self, collection: str, body: dict[str, Any]) -> None:
        operation = self.request("POST", f"compute.googleapis.com/compute/v1/{P}/{collection}", body)
        link = operation["selfLink"].removeprefix("https://www.googleapis.com/")
        assert "error" not in self.request("POST", f"compute.googleapis.com/{link}/wait")


def as_user() -> None:
    """Makes this process ask Google as the lab's user, for good: the environment says where and with what."""
    client.TPU, client.STORAGE = os.environ["LAB_TPU"], os.environ["LAB_STORAGE"]

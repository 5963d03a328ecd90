"""A fleet of eight, one a zone, on an emulated Google Cloud, and a stack that Pulumi works on.

Everything between the keeper and the cloud is real: the fleet's requests, the Pulumi CLI, the program, the
plugin (the stand-in), the front door with its faults. What isn't: machines do nothing, Google's clock runs
faster, a creation gives up after seconds where the program waits an hour, and the layers below have outputs
without ever having been up.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import requests
import yaml
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from fleet import google
from fleet.failures import Failure
from fleet.google import AskedError, Google
from fleet.provision import Outcome, placed
from fleet.stack import Stack
from fleet.state import Place, Seen, View
from infra import names
from infra.catalog import region_of
from infra.nodes import Node, nodes
from infra.settings.sources import ROOT, from_file
from infra.tpu import startup
from rehearsal.cloud.breakage import break_stream
from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import CloudConfig
from rehearsal.hosts.machine import HostSpec
from rehearsal.standin.install import install
from tests.cloud.tpu_lab import PretendedHosts
from tests.fleet.conftest import ZONES

PROJECT, OWNER, BUCKET = "wire-test", "owner@example.com", "wire-test-checkpoints"
P, BUNDLE = f"projects/{PROJECT}", "ab" * 32
ACCOUNT = f"tpu-training@{PROJECT}.iam.gserviceaccount.com"
NETWORK = f"{P}/global/networks/tpu"
REGIONS = tuple(sorted({region_of(zone) for zone in ZONES}))
SUBNETS = {region: f"{P}/regions/{region}/subnetworks/tpu" for region in REGIONS}
CONFIG: dict[str, Any] = {
    "pulumi:disable-default-providers": ["*"],
    "gcp:project": PROJECT,
    "storage:bucketName": BUCKET,
    "storage:location": "us-east5",
    "storage:allowCrossRegion": True,
    "tpu:bundle": BUNDLE,
    "tpu:slices": [
        {
            "name": "extract", "acceleratorType": "v6e-8", "zones": list(ZONES), "count": len(ZONES),
            "spot": True,
        }
    ],
}  # fmt: skip
# The program as it is, but for its patience with Google.
PROGRAM = """
import os
import pulumi
from infra.tpu import v2_vm

patience = os.environ["LAB_PATIENCE"]
v2_vm.timeouts = lambda _: pulumi.CustomTimeouts(create=patience, update=patience, delete=patience)

from infra.program import run

run()
"""
LABELS = names.labels("dev", "tpu")
OUTPUTS: dict[str, dict[str, Any]] = {
    "storage": {
        "bucketName": BUCKET,
        "stepsBucketName": f"{BUCKET}-steps",
        "serviceAccountEmail": ACCOUNT,
    },
    "network": {"networkId": NETWORK, "subnetIds": SUBNETS, "mtu": 8896},
}


class Machines(PretendedHosts):
    """Machines that say which of them were told to end while they ran, though nobody had asked for it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go: set[str] = set()  # nodes that a person has deleted
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


class Lab:
    """The cloud in a thread, the stack in a folder."""

    def __init__(self, folder: Path, patience: str = "10s", rate: float = 20.0) -> None:
        """`patience`: until Pulumi gives one request up. `rate`: of Google's clock."""
        self.folder, self.root = folder, folder / "project"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.hosts = Machines()
        config = CloudConfig(
            PROJECT, folder / "cloud", folder / "control", OWNER, "1//refresh", front_door="127.0.0.1:0",
            metadata="", clock_rate=rate,
            enabled_apis=("compute.googleapis.com", "tpu.googleapis.com", "storage.googleapis.com"),
        )  # fmt: skip
        self.call(self._open(config))
        self.token = self.cloud.iam.mint(OWNER, lifetime_s=1e9).value
        self.environment = self._environment(patience)
        self._furnish()
        self._write_project()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the cloud's loop."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(60)

    async def _open(self, config: CloudConfig) -> None:
        self.cloud = Cloud(config, self.hosts)
        await self.cloud.start()
        app = web.Application()
        app.router.add_route("*", "/{host}/{path:.*}", self._handle)
        app.on_response_prepare.append(break_stream)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        """The front door, for clients that can't be given Google's names: /HOST/PATH is PATH of HOST."""
        _, host, path = request.raw_path.split("/", 2)
        headers = CIMultiDict(request.headers)
        headers["Host"] = host
        return await self.cloud.front_door.handle(
            request.clone(headers=headers, host=host, rel_url=URL(f"/{path}", encoded=True))
        )

    def close(self) -> None:
        async def stop() -> None:
            await self._runner.cleanup()
            await self.cloud.close()

        self.call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def places(self, *names: str) -> dict[str, Place]:
        """Where members are to be, by their names; none that lives may be deleted."""
        return {one.name: Place(one.zone) for one in self.members if one.name in names}

    # The cloud

    @property
    def now_s(self) -> float:
        """Google's clock."""
        return self.cloud.world.clock.now()

    def node(self, name: str) -> dict[str, Any] | None:
        """The truth about a node: its resource, if it exists."""
        found = (self.cloud.world.directory.get(f"{P}/locations/{zone}/nodes/{name}") for zone in ZONES)
        return next((dict(one) for one in found if one), None)

    def state(self, name: str) -> str:
        """Google's word for a node; empty where there is none."""
        return str((self.node(name) or {}).get("state", ""))

    def create(self, name: str, zone: str, labels: Mapping[str, str] = LABELS) -> None:
        """Make a node as nobody's program would, and wait until it is READY."""
        body = {
            "acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e",
            "schedulingConfig": {"spot": True},
            "networkConfig": {"network": NETWORK, "subnetwork": SUBNETS[region_of(zone)]},
            "serviceAccount": {"email": ACCOUNT}, "labels": dict(labels),
        }  # fmt: skip
        self.request("POST", f"tpu.googleapis.com/v2/{P}/locations/{zone}/nodes", body, nodeId=name)
        self.until(lambda: self.state(name) == "READY")

    def delete(self, name: str) -> None:
        """Delete a node as a person would at Google, and wait until it is gone."""
        self.hosts.may_go.add(name)
        self.request("DELETE", f"tpu.googleapis.com/v2/{(self.node(name) or {})['name']}")
        self.until(lambda: not self.node(name))

    def preempt(self, name: str) -> None:
        """Take a node's machine away."""
        self.call(self.cloud.nodes.preempt(name, notice=False))
        self.until(lambda: self.state(name) == "PREEMPTED")

    def forget_memory(self) -> None:
        """A keeper that begins has no past."""
        listed = self.request("GET", f"storage.googleapis.com/storage/v1/b/{BUCKET}/o", prefix="fleet/")
        for item in listed.get("items", ()):
            path = f"storage.googleapis.com/storage/v1/b/{BUCKET}/o/{quote(item['name'], safe='')}"
            headers = {"Authorization": f"Bearer {self.token}"}
            assert requests.delete(f"{self.url}/{path}", headers=headers).ok

    def settle(self) -> None:
        """Wait until all operations on nodes have ended, but for those of slow machines."""
        passing = {"CREATING", "DELETING"}
        self.until(
            lambda: (
                not any(
                    one.state in passing and one.id not in self.hosts.slow
                    for one in self.cloud.nodes._nodes.all()
                )
            )
        )

    def until(self, what: Any, limit_s: float = 40.0) -> None:
        """Wait for something to become true."""
        end = time.monotonic() + limit_s
        while not what():
            assert time.monotonic() < end, "it doesn't come about"
            time.sleep(0.02)

    def asked(self, since: int = 0) -> list[dict[str, Any]]:
        """The requests that came to the front door."""
        entries: list[dict[str, Any]] = self.cloud.requests.since(since)["requests"]
        return entries

    def request(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """A request of the owner's to /HOST/PATH; its JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = requests.request(method, f"{self.url}/{path}", params=query, data=data, headers=headers)
        assert answer.ok, answer.text
        return answer.json()

    # What stands on it

    def google(self) -> Google:
        """The fleet's own way to ask."""
        return Google(PROJECT, BUCKET)

    @property
    def members(self) -> tuple[Node, ...]:
        """The fleet."""
        return nodes(from_file("dev", self.root))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """As the user whose stack and whose Google this is."""
        here: dict[str, Any] = {"TPU": google.TPU, "STORAGE": google.STORAGE, "_login": google._login}
        with mock.patch.dict(os.environ, self.environment), mock.patch.multiple(google, **here):
            as_user()
            yield

    def pulumi(self, *arguments: str, layer: str = ".") -> str:
        """What a command of the CLI prints."""
        line = ["pulumi", "-C", str(self.root / layer), "--non-interactive", *arguments]
        done = subprocess.run(
            line, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _environment(self, patience: str) -> dict[str, str]:
        return {
            "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PULUMI_HOME": str(self.folder / "home"),
            "PULUMI_BACKEND_URL": f"file://{self.folder / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "GOOGLE_OAUTH_ACCESS_TOKEN": self.token,
            "GOOGLE_TPU_V2_CUSTOM_ENDPOINT": f"{self.url}/tpu.googleapis.com/v2alpha1/",
            "GOOGLE_STORAGE_CUSTOM_ENDPOINT": f"{self.url}/storage.googleapis.com/storage/v1/",
            "LAB_PATIENCE": patience,
            "LAB_TPU": f"{self.url}/tpu.googleapis.com",
            "LAB_STORAGE": f"{self.url}/storage.googleapis.com",
        }

    def _furnish(self) -> None:
        """What nodes need at Google."""
        directory = self.cloud.world.directory
        directory[f"{P}/serviceAccounts/{ACCOUNT}"] = {"email": ACCOUNT}
        network = {"name": "tpu", "autoCreateSubnetworks": False, "mtu": 8896}
        self._insert("global/networks", network)
        for number, region in enumerate(REGIONS):
            subnet = {"name": "tpu", "network": NETWORK, "ipCidrRange": f"10.64.{number}.0/24"}
            self._insert(f"regions/{region}/subnetworks", {**subnet, "privateIpGoogleAccess": True})
        storage = "storage.googleapis.com"
        self.request("POST", f"{storage}/storage/v1/b", {"name": BUCKET}, project=PROJECT)
        for name in (names.bundle_manifest(BUNDLE), names.bundle_blob(startup.script_sha256())):
            media = {"uploadType": "media", "name": name}
            self.request("POST", f"{storage}/upload/storage/v1/b/{BUCKET}/o", b"", **media)

    def _insert(self, collection: str, body: dict[str, Any]) -> None:
        operation = self.request("POST", f"compute.googleapis.com/compute/v1/{P}/{collection}", body)
        link = operation["selfLink"].removeprefix("https://www.googleapis.com/")
        assert "error" not in self.request("POST", f"compute.googleapis.com/{link}/wait")

    def _write_project(self) -> None:
        """The four projects' files, and stacks of the layers below that have outputs."""
        install(self.folder / "home")
        (self.folder / "state").mkdir()
        program = self.folder / "program"
        program.mkdir()
        (program / "__main__.py").write_text(PROGRAM)
        for layer in ("tpu", *OUTPUTS):
            place = self.root if layer == "tpu" else self.root / "infra" / layer
            place.mkdir(parents=True)
            project = {"name": layer, "runtime": "python", "main": str(program)}
            (place / "Pulumi.yaml").write_text(yaml.safe_dump(project))
            (place / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": CONFIG}))
            self.pulumi("stack", "init", "dev", layer=str(place.relative_to(self.root)))
        for layer, outputs in OUTPUTS.items():
            self._import(layer, outputs)

    def _import(self, layer: str, outputs: Mapping[str, Any]) -> None:
        place = f"infra/{layer}"
        state = json.loads(self.pulumi("stack", "export", layer=place))
        kind = "pulumi:pulumi:Stack"
        urn = f"urn:pulumi:dev::{layer}::{kind}::{layer}-dev"
        state["deployment"]["resources"] = [{"urn": urn, "custom": False, "type": kind, "outputs": outputs}]
        path = self.folder / f"{layer}.json"
        path.write_text(json.dumps(state))
        self.pulumi("stack", "import", "--file", str(path), layer=place)


class Seeing:
    """What a keeper sees of a lab. It goes by Google's clock, and may be put ahead of it."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.google, self.ahead_s = lab, Listening(PROJECT, BUCKET), 0.0

    def now_s(self) -> float:
        """The keeper's present."""
        return self.lab.now_s + self.ahead_s

    def look(self, zones: Sequence[str]) -> View:
        """See `loop.Cloud`."""
        return replace(self.google.look(zones), at_s=self.now_s())

    def sweep(self, leftover: Seen) -> Failure | None:
        """See `loop.Cloud`."""
        return self.google.sweep(leftover)


class Listening(Google):
    """Keeps what its requests failed with, for good."""

    def __init__(self, project: str, bucket: str) -> None:
        super().__init__(project, bucket)
        self.failed: list[Failure] = []

    def _ask(self, *arguments: Any) -> requests.Response:
        try:
            return super()._ask(*arguments)
        except AskedError as error:
            self.failed.append(error.failure)
            raise


class Here:
    """Updates in a thread of this process."""

    def __init__(self, lab: Lab) -> None:
        self._root, self.stack = lab.root, Stack("dev", lab.root)
        self._held: dict[str, str] | None = None
        self._running: threading.Thread | None = None
        self._outcome: Outcome = {}

    def held(self) -> dict[str, str]:
        """See `loop.Builder`."""
        if self._held is None:
            self._held = placed("dev", self._root)
        return self._held

    def ask_again(self) -> None:
        """Something other than an update of its own may have changed the stack."""
        self._held = None

    def start(self, places: Mapping[str, Place]) -> None:
        """See `loop.Builder`."""

        def bring() -> None:
            self._outcome = self.stack.bring(places)

        self._running = threading.Thread(target=bring)
        self._running.start()

    def wait(self) -> None:
        """Until the update has ended."""
        if self._running:
            self._running.join()

    def ended(self) -> Outcome | None:
        """See `loop.Builder`."""
        if self._running is None or self._running.is_alive():
            return None
        self._running = self._held = None
        return self._outcome


def as_user() -> None:
    """Makes this process ask Google as the lab's user, for good: the environment says where and with what."""
    google.TPU, google.STORAGE = os.environ["LAB_TPU"], os.environ["LAB_STORAGE"]
    google._login = _session


def _session() -> requests.Session:
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {os.environ['GOOGLE_OAUTH_ACCESS_TOKEN']}"
    return session

"""Cloud TPU behind the front door, with machines that only pretend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from aiohttp.test_utils import TestClient, TestServer

from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.runtime import Runtime
from rehearsal.cloud.core.service import Call
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.doorway import Doorway
from rehearsal.cloud.door.faults import Faults
from rehearsal.cloud.door.requestlog import RequestLog
from rehearsal.cloud.door.server import FrontDoor
from rehearsal.cloud.iam.audit import Audit
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.services import services
from rehearsal.cloud.services.caller import Caller
from rehearsal.cloud.services.compute.disks import add_snapshot
from rehearsal.cloud.services.logging.entries import LoggingService
from rehearsal.cloud.services.monitoring.telemetry import Telemetry
from rehearsal.cloud.services.serviceusage import ServiceUsage
from rehearsal.cloud.services.tpu import TpuService
from rehearsal.cloud.services.tpu.quotas import Quotas
from rehearsal.hosts.errors import HostError
from rehearsal.hosts.spec import HostSpec

PROJECT, NUMBER, OWNER = "wire-test", "123456789012", "owner@example.com"
ZONE, REGION = "us-east5-b", "us-east5"
P = f"projects/{PROJECT}"
NETWORK = f"{P}/global/networks/wire-net"
SUBNETWORK = f"{P}/regions/{REGION}/subnetworks/wire-subnet"
DISK = f"{P}/zones/{ZONE}/disks/wire-data-ml"
ACCOUNT = f"wire-sa@{PROJECT}.iam.gserviceaccount.com"
APIS = ("compute.googleapis.com", "tpu.googleapis.com")


class PretendedHosts:
    """Machines that do what they are told, at once; `deaf` ones ignore the power button."""

    def __init__(self) -> None:
        self.on: dict[str, HostSpec] = {}
        self.events: list[tuple[str, str]] = []
        self.deaf = False
        self.broken: set[str] = set()
        self.may_boot = asyncio.Event()
        self.may_boot.set()

    async def boot(self, spec: HostSpec) -> None:
        await self.may_boot.wait()
        if spec.name in self.broken:
            raise HostError(f"{spec.name} did not boot")
        self.on[spec.name] = spec
        self.events.append(("boot", spec.name))

    async def power_off(self, name: str) -> None:
        self.events.append(("power_off", name))
        if not self.deaf:
            self.on.pop(name, None)

    async def cut_power(self, name: str) -> None:
        if self.on.pop(name, None) is not None:
            self.events.append(("cut_power", name))

    async def discard(self, name: str) -> None:
        await self.cut_power(name)
        self.events.append(("discard", name))

    def running(self, name: str) -> bool:
        return name in self.on


class Lab:
    """One project with a network, a subnet, a data disk and an account; virtual time runs 1,000 times."""

    def __init__(self, tmp_path: Path) -> None:
        self.world = World(PROJECT, NUMBER, VirtualClock(1000.0))
        self.iam = Iam(self.world, OWNER)
        self.hosts = PretendedHosts()
        self.operations = Operations(self.world)
        self.faults = Faults(self.world.clock)
        self.requests = RequestLog()
        self.doorway = Doorway(self.world, self.faults, self.requests)
        self.quotas = Quotas()
        telemetry = Telemetry(self.world, self.iam)
        logging = LoggingService(self.world, self.iam, telemetry)
        audit = Audit(self.world, self.iam, logging.keep, telemetry)
        self.tpu = TpuService(self.world, self.operations, self.iam, self.hosts, audit, quotas=self.quotas)
        runtime = Runtime(Caller(self.iam, lambda: ("", 0)), telemetry, logging.write)
        zones = (ZONE, "us-east5-c", "us-central1-b")
        entered = services(self.world, self.operations, self.iam, runtime, zones)
        self._compute = next(service for service in entered if service.api == "compute")
        usage = ServiceUsage(self.world, self.operations, APIS, self.quotas)
        self.door = FrontDoor(
            self.world,
            self.iam,
            usage,
            [self._compute, self.tpu, usage],
            endpoints={},
            doorway=self.doorway,
            audit=audit,
        )
        self.client = TestClient(TestServer(self.door.app()))
        self.world.directory[f"{P}/serviceAccounts/{ACCOUNT}"] = {"email": ACCOUNT}
        image = tmp_path / "data.img"
        image.write_bytes(b"data")
        add_snapshot(self.world, "corpus", image, 50)

    async def request(
        self, method: str, url: str, body: Any = None, principal: str = OWNER
    ) -> tuple[int, Any]:
        """Status and JSON of one request to `HOST/PATH`."""
        host, _, path = url.partition("/")
        headers = {"Host": host, "Authorization": f"Bearer {self.iam.mint(principal).value}"}
        async with self.client.request(method, f"/{path}", json=body, headers=headers) as response:
            return response.status, await response.json()

    async def ask(self, method: str, url: str, token: str) -> int:
        """The status of a request with this token."""
        host, _, path = url.partition("/")
        headers = {"Host": host, "Authorization": f"Bearer {token}"}
        async with self.client.request(method, f"/{path}", headers=headers) as response:
            return response.status

    async def furnish(self) -> None:
        """What a node needs."""
        net = {"name": "wire-net", "autoCreateSubnetworks": False, "mtu": 8896}
        await self.compute("networks", {}, net)
        await self.subnet("wire-subnet", privateIpGoogleAccess=True)
        await self.disk("wire-data-ml")

    async def subnet(self, name: str, cidr: str = "10.128.0.0/27", region: str = REGION, **more: Any) -> None:
        body = {"name": name, "network": NETWORK, "ipCidrRange": cidr, **more}
        await self.compute("subnetworks", {"region": region}, body)

    async def disk(self, name: str, zone: str = ZONE, kind: str = "hyperdisk-ml", **more: Any) -> None:
        body = {
            "name": name,
            "type": f"{P}/zones/{zone}/diskTypes/{kind}",
            "sourceSnapshot": f"{P}/global/snapshots/corpus",
            **({"accessMode": "READ_ONLY_MANY"} if kind == "hyperdisk-ml" else {}),
            **more,
        }
        await self.compute("disks", {"zone": zone}, body)

    async def compute(self, collection: str, place: dict[str, str], body: Any) -> None:
        """Insert a resource, past the front door: reading compute's description takes longer than a test."""
        method_id = f"compute.{collection}.insert"
        path = {"project": PROJECT, **place}
        call = Call("compute", "v1", method_id, path, {}, body, OWNER, cast(Any, None))
        operation = await self._compute.methods()[method_id].handler(call)
        assert isinstance(operation, dict)
        name = operation["selfLink"].removeprefix("https://www.googleapis.com/compute/v1/")
        done = await self.operations.wait(name)
        assert "error" not in done, done

    async def users(self, disk: str) -> list[str]:
        """Who uses a disk, by its full name."""
        _, _, _, zone, _, name = disk.split("/")
        path = {"project": PROJECT, "zone": zone, "disk": name}
        call = Call("compute", "v1", "compute.disks.get", path, {}, None, OWNER, cast(Any, None))
        body: Any = await self._compute.methods()["compute.disks.get"].handler(call)
        return list(body.get("users", ()))

    async def api(
        self, method: str, path: str, body: Any = None, *, version: str = "v2alpha1", principal: str = OWNER
    ) -> tuple[int, Any]:
        """A request to the TPU API, `path` below the zone."""
        url = f"tpu.googleapis.com/{version}/{P}/locations/{ZONE}/{path}"
        return await self.request(method, url, body, principal)

    async def create(self, node_id: str = "tpu-dev", **more: Any) -> tuple[int, Any]:
        return await self.api("POST", f"nodes?nodeId={node_id}", node_body(**more))

    async def finish(self, answer: tuple[int, Any]) -> Any:
        """The operation that a request started, once it is done."""
        status, operation = answer
        assert status == 200, operation
        return await self.operations.wait(operation["name"])

    async def ready(self, node_id: str = "tpu-dev", **more: Any) -> Any:
        """A node that is up."""
        done = await self.finish(await self.create(node_id, **more))
        assert "error" not in done, done
        return done["response"]

    async def get(self, node_id: str = "tpu-dev") -> tuple[int, Any]:
        return await self.api("GET", f"nodes/{node_id}")


def node_body(**more: Any) -> dict[str, Any]:
    """What a client sends for a spot v6e-16; None removes a field."""
    body = {
        "acceleratorType": "v6e-16",
        "runtimeVersion": "v2-alpha-tpuv6e",
        "networkConfig": {"network": NETWORK, "subnetwork": SUBNETWORK, "enableExternalIps": False},
        "schedulingConfig": {"spot": True},
        "serviceAccount": {
            "email": ACCOUNT,
            "scope": ["https://www.googleapis.com/auth/cloud-platform"],
        },
        "dataDisks": [{"mode": "READ_ONLY", "sourceDisk": DISK}],
        "metadata": {"startup-script": "#!/bin/bash\n", "tpu-slice": "tpu-dev"},
        "labels": {"env": "dev"},
        **more,
    }
    return {key: value for key, value in body.items() if value is not None}


@asynccontextmanager
async def open_lab(tmp_path: Path) -> AsyncIterator[Lab]:
    lab = Lab(tmp_path)
    async with lab.client:
        await lab.furnish()
        yield lab
        for task in list(lab.world.tasks):
            task.cancel()
    assert lab.world.mistakes == []

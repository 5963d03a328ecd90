"""Cloud TPU behind the front door, with machines that only pretend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.machines.metadata import Guest, MetadataServer
from rehearsal.cloud.services.compute.disks import add_snapshot
from tests.emulated import OWNER, PROJECT, PretendedHosts, config
from tests.limits import HANG_S

ZONE, REGION = "us-east5-b", "us-east5"
P = f"projects/{PROJECT}"
NETWORK = f"{P}/global/networks/wire-net"
SUBNETWORK = f"{P}/regions/{REGION}/subnetworks/wire-subnet"
DISK = f"{P}/zones/{ZONE}/disks/wire-data-ml"
ACCOUNT = f"wire-sa@{PROJECT}.iam.gserviceaccount.com"
APIS = ("compute.googleapis.com", "tpu.googleapis.com")


class Lab:
    """A project with a network, a subnet, a data disk and an account; virtual time runs 1,000 times."""

    def __init__(self, tmp_path: Path) -> None:
        self.hosts = PretendedHosts()
        zones = (ZONE, "us-east5-c", "us-central1-b")
        self.cloud = cloud = Cloud(config(tmp_path, zones=zones, enabled_apis=APIS), self.hosts)
        self.world, self.iam, self.operations = cloud.world, cloud.iam, cloud.operations
        self.faults, self.requests, self.doorway = cloud.faults, cloud.requests, cloud.doorway
        self.quotas, self.tpu, self.door = cloud.quotas, cloud.nodes, cloud.front_door
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

    async def status(self, method: str, url: str, token: str) -> int:
        """The status of a request with this token."""
        host, _, path = url.partition("/")
        headers = {"Host": host, "Authorization": f"Bearer {token}"}
        async with self.client.request(method, f"/{path}", headers=headers) as response:
            return response.status

    async def furnish(self) -> None:
        """Create the resources that a node needs."""
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
        """Insert a resource."""
        scope = "".join(f"{kind}s/{name}/" for kind, name in place.items()) or "global/"
        url = f"compute.googleapis.com/compute/v1/{P}/{scope}{collection}"
        status, operation = await self.request("POST", url, body)
        assert status == 200, operation
        name = operation["selfLink"].removeprefix("https://www.googleapis.com/compute/v1/")
        done = await self.operations.wait(name)
        assert "error" not in done, done

    async def users(self, disk: str) -> list[str]:
        """Return the users of a disk, by its full name."""
        status, body = await self.request("GET", f"compute.googleapis.com/compute/v1/{disk}")
        assert status == 200, body
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
    """Return a client's body for a spot v6e-16; None removes a field."""
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


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.01)


FLAVOR = {"Metadata-Flavor": "Google"}


@dataclass
class Machine:
    """The metadata server as the machine with this address finds it; by default worker 2."""

    lab: Lab
    address: str = "10.128.0.4"
    client: TestClient[web.Request, web.Application] = field(init=False)

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Any:
        response = await self.client.get(
            path if path.startswith("/") else f"/computeMetadata/v1/{path}",
            headers=FLAVOR if headers is None else headers,
            allow_redirects=False,
        )
        await response.read()
        return response

    async def text(self, path: str) -> str:
        response = await self.get(path)
        assert response.status == 200, path
        return str(await response.text())

    async def send(self, method: str, path: str, data: str | None = None, **headers: str) -> tuple[int, str]:
        """Status and text of a request about guest attributes."""
        url = f"/computeMetadata/v1/instance/guest-attributes/{path}"
        async with self.client.request(method, url, data=data, headers=FLAVOR | headers) as response:
            return response.status, await response.text()

    def guest(self, address: str) -> Guest | None:
        return self.lab.tpu.guest(self.address)

    async def changed(self) -> None:
        await self.lab.cloud.machines.changed()


@asynccontextmanager
async def open_machine(lab: Lab) -> AsyncIterator[Machine]:
    machine = Machine(lab)
    server = MetadataServer(lab.world, machine, lab.iam, lab.doorway)
    async with TestClient(TestServer(server.app())) as machine.client:
        yield machine

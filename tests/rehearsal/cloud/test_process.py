"""The cloud as a process of its own: TLS, all doors, a clean end; and a slice made through it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from aiohttp import ClientSession, TCPConnector

from rehearsal import authority
from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import NO_LAGS, CloudConfig, ConfigError, address, parse
from rehearsal.cloud.control import Control
from rehearsal.hosts.spec import HostSpec
from tests.limits import HANG_S

REFRESH_TOKEN, OWNER, PROJECT = "1//secret", "owner@example.com", "wire-test"
ROOT = Path(__file__).parents[3]


def document(folder: Path, port: int, **more: Any) -> dict[str, Any]:
    tls = authority.issue(folder / "tls", ["*.googleapis.com"], ["127.0.0.1"])
    return {
        "project": PROJECT,
        "directory": str(folder / "cloud"),
        "control": str(folder / "control.sock"),
        "owner": OWNER,
        "refresh_token": REFRESH_TOKEN,
        "front_door": f"127.0.0.1:{port}",
        "metadata": "",
        "certificate": str(tls.certificate),
        "key": str(tls.key),
        "clock_rate": 1000,
        **NO_LAGS,
        **more,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    port, config = free_port(), tmp_path / "cloud.json"
    config.write_text(json.dumps(document(tmp_path, port)))
    command = [sys.executable, "-m", "rehearsal.cloud", "--config", str(config)]
    started = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + HANG_S
    while not (tmp_path / "control.sock").exists() and started.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    yield started, port, tmp_path
    if started.poll() is None:
        started.kill()
        started.wait()


def test_it_serves_tls_and_ends_without_a_trace(process: tuple[subprocess.Popen[str], int, Path]) -> None:
    started, port, folder = process
    control = Control(folder / "control.sock")
    assert control.status()["nodes"] == []
    url = f"https://127.0.0.1:{port}"
    form = {"grant_type": "refresh_token", "refresh_token": REFRESH_TOKEN}
    bundle = str(folder / "tls" / "bundle.pem")
    token = requests.post(
        f"{url}/token", data=form, headers={"Host": "oauth2.googleapis.com"}, verify=bundle, timeout=HANG_S
    ).json()["access_token"]
    headers = {"Authorization": f"Bearer {token}", "Host": "storage.googleapis.com"}
    made = requests.post(
        f"{url}/storage/v1/b?project={PROJECT}",
        json={"name": "first-bucket", "location": "US-EAST5"},
        headers=headers,
        verify=bundle,
        timeout=HANG_S,
    )
    assert made.status_code == 200, made.text
    assert control.status()["requests"]["methods"]["storage.buckets.insert"]["validated"] == 1
    started.send_signal(signal.SIGTERM)
    assert started.wait(HANG_S) == 0
    assert not (folder / "control.sock").exists()
    assert len((folder / "cloud" / "requests.jsonl").read_text().splitlines()) == 2


def test_a_wrong_configuration_ends_the_process_with_its_problems(tmp_path: Path) -> None:
    config = tmp_path / "cloud.json"
    config.write_text(json.dumps({"project": "p"}))
    command = [sys.executable, "-m", "rehearsal.cloud", "--config", str(config)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert ended.returncode == 1
    assert ended.stderr.startswith("rehearsal.cloud: 4 problems in the cloud's configuration:\n")
    assert "  directory = nothing: required\n" in ended.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zone": "us-east5-b"}, 'zone = "us-east5-b": unknown key\n    fix: did you mean zones?'),
        ({"clock_rate": "fast"}, 'clock_rate = "fast": must be a number'),
        ({"zones": 5}, "zones = 5: must be a list"),
        ({"seed": 1.5}, "seed = 1.5: must be a whole number"),
        ({"directory": 5}, "directory = 5: must be a path"),
    ],
)
def test_configurations_are_checked(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(document(tmp_path, 1) | change)
    assert message in str(caught.value)


def test_addresses_are_checked() -> None:
    assert address("199.36.153.8:443") == ("199.36.153.8", 443)
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        address("443")


class Racks:
    """Machines that only say that they run."""

    def __init__(self) -> None:
        self.on: dict[str, HostSpec] = {}

    async def boot(self, spec: HostSpec) -> None:
        self.on[spec.name] = spec

    async def power_off(self, name: str) -> None:
        self.on.pop(name, None)

    async def cut_power(self, name: str) -> None:
        self.on.pop(name, None)

    async def discard(self, name: str) -> None:
        self.on.pop(name, None)

    def running(self, name: str) -> bool:
        return name in self.on


class Owner:
    """The project's owner, with a session to the front door."""

    def __init__(self, cloud: Cloud, session: ClientSession) -> None:
        self._cloud = cloud
        self._session = session
        self._token = cloud.iam.mint(OWNER).value

    async def __call__(self, http_method: str, url: str, body: Any = None) -> Any:
        host, _, path = url.partition("/")
        headers = {"Host": host, "Authorization": f"Bearer {self._token}"}
        target = f"https://127.0.0.1:{self._cloud.port}/{path}"
        async with self._session.request(http_method, target, json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def compute(self, path: str, body: Any) -> None:
        """Make something and wait until it is there."""
        started = await self("POST", f"compute.googleapis.com/compute/v1/projects/{PROJECT}/{path}", body)
        link = started["selfLink"].removeprefix("https://www.googleapis.com/")
        done = await self("POST", f"compute.googleapis.com/{link}/wait")
        assert "error" not in done, done

    async def until_done(self, base: str, name: str) -> Any:
        """A google.longrunning operation's last body."""
        while True:
            operation = await self("GET", f"{base}/{name}")
            if operation["done"]:
                assert "error" not in operation, operation
                return operation


async def test_a_slice_comes_up_from_nothing_and_is_preempted(tmp_path: Path) -> None:
    racks = Racks()
    config = parse(document(tmp_path, 0))
    cloud = Cloud(config, racks)
    await cloud.start()
    trust = ssl.create_default_context(cafile=str(tmp_path / "tls" / "bundle.pem"))
    trust.check_hostname = False
    try:
        async with ClientSession(connector=TCPConnector(ssl=trust)) as session:
            owner = Owner(cloud, session)
            node = await bring_up(owner, config, tmp_path)
            assert node["state"] == "READY"
            assert sorted(racks.on) == ["tpu-dev-w0", "tpu-dev-w1", "tpu-dev-w2", "tpu-dev-w3"]
            spec = racks.on["tpu-dev-w2"]
            assert (spec.worker, spec.mtu, spec.disks[0].image.read_bytes()) == (2, 8896, b"tokens")
            await cloud.nodes.preempt("tpu-dev", notice=False)
            await cloud.world.clock.sleep(100)
            (status,) = cloud.nodes.nodes_status()
            assert (status["state"], racks.on) == ("PREEMPTED", {})
            assert cloud.requests.counts()["refused"] == 0
    finally:
        await cloud.close()


async def bring_up(owner: Owner, config: CloudConfig, folder: Path) -> Any:
    """Do the work of the four stacks, in order; return the node's resource."""
    project, zone = f"projects/{PROJECT}", "us-east5-b"
    services = ["compute.googleapis.com", "tpu.googleapis.com", "iam.googleapis.com"]
    usage = f"serviceusage.googleapis.com/v1/{project}/services:batchEnable"
    enabling = await owner("POST", usage, {"serviceIds": services})
    await owner.until_done("serviceusage.googleapis.com/v1beta1", enabling["name"])
    accounts = f"iam.googleapis.com/v1/{project}/serviceAccounts"
    account = await owner("POST", accounts, {"accountId": "tpu-training"})
    network = {"name": "net", "autoCreateSubnetworks": False, "mtu": 8896}
    await owner.compute("global/networks", network)
    subnet = {
        "name": "sub",
        "network": f"{project}/global/networks/net",
        "ipCidrRange": "10.0.0.0/20",
        "privateIpGoogleAccess": True,
    }
    await owner.compute("regions/us-east5/subnetworks", subnet)
    image = folder / "tokens.ext4"
    image.write_bytes(b"tokens")
    await asyncio.to_thread(Control(config.control).add_snapshot, "tokens", image, disk_size_gb=10)
    disk = {
        "name": "data",
        "type": f"zones/{zone}/diskTypes/hyperdisk-ml",
        "sizeGb": 1000,
        "accessMode": "READ_ONLY_MANY",
        "sourceSnapshot": "global/snapshots/tokens",
    }
    await owner.compute(f"zones/{zone}/disks", disk)
    node = {
        "acceleratorType": "v6e-16",
        "runtimeVersion": "v2-alpha-tpuv6e",
        "networkConfig": {
            "network": f"{project}/global/networks/net",
            "subnetwork": f"{project}/regions/us-east5/subnetworks/sub",
        },
        "serviceAccount": {"email": account["email"]},
        "schedulingConfig": {"spot": True},
        "dataDisks": [{"sourceDisk": f"{project}/zones/{zone}/disks/data", "mode": "READ_ONLY"}],
    }
    nodes = f"tpu.googleapis.com/v2alpha1/{project}/locations/{zone}/nodes"
    started = await owner("POST", f"{nodes}?nodeId=tpu-dev", node)
    await owner.until_done("tpu.googleapis.com/v2alpha1", started["name"])
    return await owner("GET", f"{nodes}/tpu-dev")

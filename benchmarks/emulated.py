"""The rehearsal's Google Cloud for measurements: a process, a project with what nodes need, and no hosts.

    with Emulated(folder, zones) as cloud: …     python -m benchmarks.emulated FOLDER is what it runs

Nodes are as real as the API makes them; where the rehearsal boots machines, there is a name. Its clock stands
until somebody lets it jump. Clients reach it by Google's own names: in this process through a session that
connects there, in others by `HTTPS_PROXY`, as from behind a firewall.
"""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from infra.catalog import region_of
from infra.engine.settings import parse
from infra.layers.network.names import DEFAULT_RANGES
from infra.layers.network.settings import NetworkSettings
from infra.layers.storage.settings import StorageSettings
from infra.layers.tpu.request import member_request
from infra.slices.names import member_labels
from infra.slices.nodes import Node
from rehearsal import authority
from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import NO_LAGS, CloudConfig
from rehearsal.cloud.control import Control
from rehearsal.cloud.services.tpu.nodes import Durations
from rehearsal.hosts.spec import HostSpec
from rehearsal.world.person import write_login

PROJECT, BUCKET, OWNER, REFRESH_TOKEN = "measured", "measured-checkpoints", "owner@example.com", "1//measured"
ENVIRONMENT, STACK = "measured", "0a1b2c3"
CONFIG = {"gcp:project": PROJECT, "storage:bucketName": BUCKET, "storage:location": "us-east5"}
SETTINGS = parse(ENVIRONMENT, CONFIG, f"Pulumi.{ENVIRONMENT}.yaml")
NETWORK = SETTINGS[NetworkSettings].name
ACCOUNT = SETTINGS[StorageSettings].service_account_id
APIS = ("compute", "iam", "serviceusage", "storage", "tpu")
_START_S = 60.0


class Imagined:
    """Machines that are on where they were switched on, and nothing else."""

    def __init__(self) -> None:
        self._on: set[str] = set()

    async def boot(self, spec: HostSpec) -> None:
        """See `machine.Hosts`."""
        self._on.add(spec.name)

    async def power_off(self, name: str) -> None:
        """See `machine.Hosts`."""
        self._on.discard(name)

    async def cut_power(self, name: str) -> None:
        """See `machine.Hosts`."""
        self._on.discard(name)

    async def discard(self, name: str) -> None:
        """See `machine.Hosts`."""
        self._on.discard(name)

    def running(self, name: str) -> bool:
        """See `machine.Hosts`."""
        return name in self._on


class _Front(HTTPAdapter):
    """Sends what is for Google's names to the emulated cloud's front door, as they name it."""

    def __init__(self, port: int):
        super().__init__(pool_maxsize=16)
        self._port = port

    def send(self, request: requests.PreparedRequest, *rest: Any, **more: Any) -> requests.Response:
        assert request.url
        parts = urlsplit(request.url)
        request.headers["Host"] = parts.netloc
        request.url = parts._replace(scheme="http", netloc=f"127.0.0.1:{self._port}").geturl()
        return super().send(request, *rest, **more)


class Emulated:
    """The cloud's process, up and furnished while this is entered.

    Attributes:
        control: what happens to the cloud.
        port: of its front door, plain HTTP.
        token: of the project's owner.
    """

    def __init__(self, folder: Path, zones: Iterable[str], durations: Durations | None = None):
        self._folder = folder
        self._regions = sorted({region_of(zone) for zone in zones})
        self._durations = durations or Durations(late=0.0)  # nothing boots here
        self.control = Control(folder / "control.sock")

    def __enter__(self) -> Self:
        settings = json.dumps(self._durations.__dict__)
        with (self._folder / "cloud.log").open("w") as log:
            self._process = subprocess.Popen(
                # It must not outlive us, however we end.
                ["setpriv", "--pdeathsig", "TERM", "--",
                 sys.executable, "-m", "benchmarks.emulated", self._folder, settings],
                cwd=Path(__file__).parents[1], stderr=log,
            )  # fmt: skip
        try:
            ports = self._folder / "ports.json"
            self._wait(ports)
            self.port, self._proxy = json.loads(ports.read_text())
            self.session = requests.Session()
            self.session.trust_env = False  # neither proxies nor a .netrc lead here
            self.session.mount("https://", _Front(self.port))
            form = {"grant_type": "refresh_token", "refresh_token": REFRESH_TOKEN}
            answer = self.session.post("https://oauth2.googleapis.com/token", data=form, timeout=30)
            self.token = answer.json()["access_token"]
            self.session.headers["Authorization"] = f"Bearer {self.token}"
            self._furnish()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def _wait(self, path: Path) -> None:
        end = time.monotonic() + _START_S
        while not path.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"no emulated cloud:\n{(self._folder / 'cloud.log').read_text()[-2000:]}")
            time.sleep(0.05)

    def ask(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to one request for `api.googleapis.com/…`, which must succeed."""
        answer = self.session.request(method, f"https://{url}", json=body, timeout=60)
        assert answer.ok, f"{method} {url}: {answer.status_code} {answer.text[:500]}"
        return answer.json()

    def variables(self) -> dict[str, str]:
        """The environment in which another process takes this for Google, and is its owner."""
        login = write_login(self._folder, "owner", REFRESH_TOKEN)
        stored = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        return {
            **stored,
            "GOOGLE_APPLICATION_CREDENTIALS": str(login),
            "HTTPS_PROXY": f"http://127.0.0.1:{self._proxy}",
            "NO_PROXY": "",
            "REQUESTS_CA_BUNDLE": str(self._folder / "tls" / "bundle.pem"),
        }

    def create(self, nodes: Iterable[Node], longest_s: float) -> None:
        """Makes nodes, and waits until all are READY."""
        for node in nodes:
            parent = f"tpu.googleapis.com/v2/projects/{PROJECT}/locations/{node.zone}"
            self.ask("POST", f"{parent}/nodes?nodeId={node.name}", body(node))
        self.control.jump(longest_s)

    def _furnish(self) -> None:
        """Network, subnets, the hosts' account, the bucket: as our stacks make them."""
        compute = f"compute.googleapis.com/compute/v1/projects/{PROJECT}"
        net = {"name": NETWORK, "autoCreateSubnetworks": False, "mtu": 8896}
        self.ask("POST", f"{compute}/global/networks", net)
        self.control.jump(60)
        for region in self._regions:
            subnet = {
                "name": f"{NETWORK}-{region}", "network": f"projects/{PROJECT}/global/networks/{NETWORK}",
                "ipCidrRange": DEFAULT_RANGES[region], "privateIpGoogleAccess": True,
            }  # fmt: skip
            self.ask("POST", f"{compute}/regions/{region}/subnetworks", subnet)
        self.control.jump(60)
        account = {"accountId": ACCOUNT}
        self.ask("POST", f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts", account)
        # Without soft delete: a memory that is written every minute would fill this machine's disk.
        for name in (BUCKET, f"{BUCKET}-fleet"):
            bucket = {
                "name": name,
                "location": "US-EAST5",
                "softDeletePolicy": {"retentionDurationSeconds": "0"},
            }
            self.ask("POST", f"storage.googleapis.com/storage/v1/b?project={PROJECT}", bucket)


def body(node: Node) -> Mapping[str, Any]:
    """What a member is created from."""
    labels = member_labels(ENVIRONMENT, node.slice, node.member or 0, STACK)
    return member_request(SETTINGS, node, labels)


async def serve(folder: Path, durations: Durations) -> None:
    """The process: until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    config = CloudConfig(
        project=PROJECT, directory=folder / "cloud", control=folder / "control.sock", owner=OWNER,
        refresh_token=REFRESH_TOKEN, front_door="127.0.0.1:0", metadata="", clock_rate=0.0,
        enabled_apis=tuple(f"{api}.googleapis.com" for api in APIS), **NO_LAGS,
    )  # fmt: skip
    cloud = Cloud(config, Imagined(), durations)
    # A virtual minute takes milliseconds: the limit of a write a second is of real ones.
    cloud.storage.limit.now = count(step=60).__next__
    try:
        await cloud.start()
        tls = authority.issue(folder / "tls", ["*.googleapis.com"], ["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        proxy = await asyncio.start_server(
            lambda reader, writer: _proxied(reader, writer, context, cloud.port), "127.0.0.1", 0
        )
        ports = folder / "ports.tmp"
        ports.write_text(json.dumps([cloud.port, proxy.sockets[0].getsockname()[1]]))
        ports.rename(folder / "ports.json")
        await stop.wait()
        proxy.close()
    finally:
        await cloud.close()


async def _proxied(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, port: int
) -> None:
    """One CONNECT: TLS ends here, in Google's name, and continues to the front door."""
    with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await writer.drain()
        await writer.start_tls(context)
        there, thither = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pumped(reader, thither), _pumped(there, writer))


async def _pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while piece := await source.read(1 << 16):
            sink.write(piece)
            await sink.drain()
    sink.close()


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    asyncio.run(serve(Path(sys.argv[1]), Durations(**{**given, "spread": tuple(given["spread"])})))

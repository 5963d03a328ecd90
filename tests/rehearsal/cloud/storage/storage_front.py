"""A front door with nothing but Cloud Storage behind it, on a loopback port, for real clients."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
import ssl
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from multidict import CIMultiDict

from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.doorway import Doorway
from rehearsal.cloud.door.faults import Faults
from rehearsal.cloud.door.requestlog import RequestLog
from rehearsal.cloud.door.server import FrontDoor
from rehearsal.cloud.iam.audit import Audit
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.services.monitoring.telemetry import Telemetry
from rehearsal.cloud.services.storage import HttpOrGrpcSite, StorageService
from rehearsal.cloud.services.storage.xml import XmlApi
from tests.limits import HANG_S

PROJECT, NUMBER = "wire-test", "123456789012"
OWNER = "owner@example.com"
unhurried = itertools.count(step=60).__next__  # a minute passes between two mutations


class _AllEnabled:
    def require(self, api: str) -> None:
        pass

    def enabled(self, api: str) -> bool:
        return True


class Front:
    """The real front door, in a thread, to which mutations come a minute apart.

    Requests without a token count as the owner's, unless their Authorization is empty.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.call(self._start())

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the server's loop."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(HANG_S)

    async def _start(self) -> None:
        self.world = World(PROJECT, NUMBER, VirtualClock())
        self.iam = Iam(self.world, OWNER)
        self.faults, self.requests = Faults(self.world.clock), RequestLog()
        doorway = Doorway(self.world, self.faults, self.requests)
        self.service = StorageService(self.world, self.iam, self.root, doorway)
        self.limit = self.service.limit
        self.limit.now = unhurried
        await self.service.start()
        self._owner = self.iam.mint(OWNER, lifetime_s=1e9).value  # proofs run for hours
        self._door = FrontDoor(
            self.world,
            self.iam,
            _AllEnabled(),
            [self.service],
            endpoints={},
            doorway=doorway,
            audit=Audit(self.world, self.iam, lambda entry: None, Telemetry(self.world, self.iam)),
            translators=[XmlApi()],
        )
        app = web.Application()
        app.router.add_route("*", "/{path:(?s:.*)}", self._handle)
        self.runner = web.AppRunner(app, shutdown_timeout=1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.port = self.runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    @contextmanager
    def tls(self, ca: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        """Also on TLS, with gRPC, as in the rehearsal's network; writes the certificate, yields the URL."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate(ca))
        site = HttpOrGrpcSite(self.runner, host, port, context, self.service.grpc_socket)
        self.call(site.start())
        yield f"https://{host}:{self.runner.addresses[-1][1]}"
        self.call(site.stop())

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/token":
            token = self.iam.mint(request.query["principal"])
            return web.json_response({"access_token": token.value, "expires_in": 3600})
        headers = CIMultiDict(request.headers)
        sent = headers.get("Authorization", "anonymous")
        if sent and not sent.startswith("Bearer ya29."):
            headers["Authorization"] = f"Bearer {self._owner}"
        # tensorstore adds this parameter to defeat caches; Google's servers ignore it.
        url = request.rel_url.without_query_params("tensorstore")
        if url.query_string == request.rel_url.query_string:
            url = request.rel_url
        host = headers.pop("X-Test-Host", "storage.googleapis.com")
        clone = request.clone(headers=headers, host=host, rel_url=url)
        return await self._door.handle(clone)

    def close(self) -> None:
        async def stop() -> None:
            await self.runner.cleanup()
            await self.service.close()

        self.call(stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(HANG_S)
        assert self.world.mistakes == []

    def request(
        self,
        http_method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        principal: str = OWNER,
        **query: Any,
    ) -> Reply:
        """One request; `path` is relative to /storage/v1 unless it starts with a slash."""
        url = self.url + (path if path.startswith("/") else f"/storage/v1/{path}")
        if query:
            url += "?" + urlencode({key: _text(value) for key, value in query.items()}, doseq=True)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        token = self._owner if principal == OWNER else self.token(principal)
        sent = {"Authorization": f"Bearer {token}", **(headers or {})}
        request = Request(url, data=data, method=http_method, headers=sent)
        try:
            with urlopen(request, timeout=HANG_S) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())

    def token(self, principal: str) -> str:
        """An access token for this account."""

        async def mint() -> str:
            return self.iam.mint(principal).value

        return str(self.call(mint()))

    def put(self, bucket: str, name: str, content: bytes, **query: Any) -> Reply:
        """Upload an object in one request."""
        return self.request(
            "POST", f"/upload/storage/v1/b/{bucket}/o", content, uploadType="media", name=name, **query
        )

    def read(self, bucket: str, name: str, *, headers: dict[str, str] | None = None, **query: Any) -> Reply:
        """Download an object."""
        return self.request("GET", object_path(bucket, name), headers=headers, alt="media", **query)


class Reply:
    """What came back."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """The legacy reason of an error."""
        return str(self.json["error"]["errors"][0]["reason"])


def object_path(bucket: str, name: str) -> str:
    """The object's path, relative to /storage/v1."""
    return f"b/{bucket}/o/{quote(name, safe='')}"


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def certificate(path: Path) -> Path:
    """A self-signed certificate with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "storage")])
    names = [x509.DNSName("storage.googleapis.com"), x509.IPAddress(ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path

"""Cloud Storage on a loopback port, for real clients."""

from __future__ import annotations

import datetime
import itertools
import json
import ssl
from collections.abc import Iterator
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

from rehearsal.cloud.config import CloudConfig
from rehearsal.cloud.services.storage import HttpOrGrpcSite
from tests.emulated import EVERY_API, NUMBER, OWNER, PROJECT, Emulated, Reply, url
from tests.limits import HANG_S

__all__ = ["NUMBER", "OWNER", "PROJECT", "Front", "Reply"]
unhurried = itertools.count(step=60).__next__  # a minute passes between two mutations


class Front(Emulated):
    """Storage, to which mutations come a minute apart.

    Requests without a token count as the owner's, unless their Authorization is empty.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root, enabled_apis=EVERY_API, clock_rate=1.0)

    async def _open(self, config: CloudConfig) -> None:
        await super()._open(config)
        self.service = self.cloud.storage
        self.limit = self.service.limit
        self.limit.now = unhurried
        self._owner = self.iam.mint(OWNER, lifetime_s=1e9).value  # proofs run for hours
        self.runner = await self.served(self._handle)
        self.url = url(self.runner)
        self.port = self.runner.addresses[0][1]

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
        target = request.rel_url.without_query_params("tensorstore")
        if target.query_string == request.rel_url.query_string:
            target = request.rel_url
        host = headers.pop("X-Test-Host", "storage.googleapis.com")
        clone = request.clone(headers=headers, host=host, rel_url=target)
        return await self.cloud.front_door.handle(clone)

    def request(  # type: ignore[override]
        self,
        http_method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        principal: str = OWNER,
        **query: Any,
    ) -> Reply:
        """Send a request; `path` is relative to /storage/v1 unless it starts with a slash."""
        target = self.url + (path if path.startswith("/") else f"/storage/v1/{path}")
        if query:
            target += "?" + urlencode({key: _text(value) for key, value in query.items()}, doseq=True)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        token = self._owner if principal == OWNER else self.token_of(principal)
        sent = {"Authorization": f"Bearer {token}", **(headers or {})}
        request = Request(target, data=data, method=http_method, headers=sent)
        try:
            with urlopen(request, timeout=HANG_S) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())

    def put(self, bucket: str, name: str, content: bytes, **query: Any) -> Reply:
        """Upload an object in one request."""
        return self.request(
            "POST", f"/upload/storage/v1/b/{bucket}/o", content, uploadType="media", name=name, **query
        )

    def read(self, bucket: str, name: str, *, headers: dict[str, str] | None = None, **query: Any) -> Reply:
        """Download an object."""
        return self.request("GET", object_path(bucket, name), headers=headers, alt="media", **query)


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

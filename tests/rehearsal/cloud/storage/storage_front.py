"""Cloud Storage on a loopback port, for real clients."""

from __future__ import annotations

import itertools
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from aiohttp import web
from multidict import CIMultiDict

from rehearsal import authority
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
        self.unwatch()
        self.service = self.cloud.storage
        self.limit = self.service.limit
        self.limit.now = unhurried
        self._owner = self.iam.mint(OWNER, lifetime_s=1e9).value  # proofs run for hours
        self.runner = await self.served(self._handle)
        self.url = url(self.runner)
        self.port = self.runner.addresses[0][1]

    @contextmanager
    def tls(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        """Serve TLS and gRPC too, as in the rehearsal's network; writes `ca.pem`, yields the URL."""
        files = authority.issue(folder, ["storage.googleapis.com"], ["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
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

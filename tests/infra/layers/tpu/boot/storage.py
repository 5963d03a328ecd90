"""A storage server on loopback, and a front that gives it Google's name, TLS and faults."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from rehearsal.authority import TlsFiles
from tests.limits import HANG_S
from tests.rehearsal.cloud.storage import storage_front
from tests.served import Received, Reply

BUCKET = "lab-checkpoints"


@contextlib.contextmanager
def emulated_storage(folder: Path) -> Iterator[str]:
    """Emulate Cloud Storage with an empty bucket; yields its base URL."""
    front = storage_front.Front(folder / "cloud")
    client_of(front.url).create_bucket(BUCKET)
    front.grant(f"projects/_/buckets/{BUCKET}", "roles/storage.objectUser", f"user:{storage_front.OWNER}")
    yield front.url
    front.close()


def client_of(url: str) -> storage.Client:
    return storage.Client(
        project=storage_front.PROJECT,
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": url},
    )


@dataclass
class Fault:
    """Answers `times` requests whose method and path match with `status`."""

    matches: Callable[[str, str], bool]
    status: int
    times: int
    observed: int = 0


@dataclass
class Front:
    """The servers of Cloud Storage, Cloud Logging and Secret Manager inside the lab."""

    backend: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    on_status: Callable[[dict[str, Any]], None] | None = None
    logged: list[dict[str, Any]] = field(default_factory=list)  # each entry with what its request has for all
    secrets: dict[str, str] = field(default_factory=dict)  # values by version, "hf-token/versions/latest"

    def answer(self, request: Received) -> Reply:
        """Answer a request; see `tests.served`."""
        target = request.target
        self.requests.append((request.method, target))
        if request.headers.get("Authorization") != "Bearer lab-token":
            return Reply(401, b"no token of this host's service account")
        for fault in self.faults:
            if fault.observed < fault.times and fault.matches(request.method, target):
                fault.observed += 1
                return Reply(fault.status, b"a fault of the lab")
        if target == "/v2/entries:write":
            return self._log(json.loads(request.body))
        if target.startswith("/v1/projects/lab/secrets/"):
            return self._access(target.removeprefix("/v1/projects/lab/secrets/").removesuffix(":access"))
        if target.startswith("/upload/") and "%2Fworker-" in target and self.on_status:
            self.on_status(json.loads(request.body.split(b"\r\n\r\n")[2].partition(b"\r\n--")[0]))
        if "/storageLayout" in target:
            return Reply(200, {"kind": "storage#storageLayout"})
        return self._forward(request)

    def _log(self, request: dict[str, Any]) -> Reply:
        for entry in request["entries"]:
            labels = {**request["labels"], **entry.get("labels", {})}
            self.logged.append({"logName": request["logName"], **entry, "labels": labels})
        return Reply(200, {})

    def _access(self, version: str) -> Reply:
        if version not in self.secrets:
            return Reply(404, {})
        return Reply(200, {"payload": {"data": base64.b64encode(self.secrets[version].encode()).decode()}})

    def _forward(self, request: Received) -> Reply:
        backend = urllib.parse.urlsplit(self.backend)
        connection = http.client.HTTPConnection(backend.hostname or "", backend.port, timeout=HANG_S)
        dropped = {"connection", "transfer-encoding", "content-length", "accept-encoding", "date", "server"}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
        connection.request(request.method, request.target, request.body, headers)
        reply = connection.getresponse()
        kept = [(name, value) for name, value in reply.getheaders() if name.lower() not in dropped]
        answer = Reply(reply.status, reply.read(), kept)
        connection.close()
        return answer


def with_tls(listener: socket.socket, files: TlsFiles) -> ssl.SSLSocket:
    """Return a listening socket with TLS; the handshake is in the handler's thread, at the first read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)

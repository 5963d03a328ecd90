"""A storage server on loopback, and a front that gives it Google's name, TLS and faults."""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.client
import http.server
import json
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.limits import HANG_S
from tests.rehearsal.cloud.storage import storage_front

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

    def server(self, listener: socket.socket, certificate: Path) -> http.server.ThreadingHTTPServer:
        """Serve on an already listening socket, not yet serving."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        front = self

        class Handler(_FrontHandler):
            state = front

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 443), Handler, bind_and_activate=False)
        server.socket.close()
        # The handshake happens in the handler's thread, at the first read.
        server.socket = context.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)
        server.daemon_threads = True
        return server


class _FrontHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Front

    def log_message(self, *_: object) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _handle(self) -> None:
        body = self._body()
        self.state.requests.append((self.command, self.path))
        if self.headers.get("Authorization") != "Bearer lab-token":
            return self._answer(401, [], b"no token of this host's service account")
        for fault in self.state.faults:
            if fault.observed < fault.times and fault.matches(self.command, self.path):
                fault.observed += 1
                return self._answer(fault.status, [], b"a fault of the lab")
        if self.path == "/v2/entries:write":
            return self._log(json.loads(body))
        if self.path.startswith("/v1/projects/lab/secrets/"):
            return self._access(self.path.removeprefix("/v1/projects/lab/secrets/").removesuffix(":access"))
        if self.path.startswith("/upload/") and "%2Fworker-" in self.path and self.state.on_status:
            self.state.on_status(json.loads(body.split(b"\r\n\r\n")[2].partition(b"\r\n--")[0]))
        if "/storageLayout" in self.path:
            return self._answer(200, [], b'{"kind": "storage#storageLayout"}')
        return self._answer(*self._forward(self.command, self.path, body))

    def _log(self, request: dict[str, Any]) -> None:
        for entry in request["entries"]:
            labels = {**request["labels"], **entry.get("labels", {})}
            self.state.logged.append({"logName": request["logName"], **entry, "labels": labels})
        return self._answer(200, [], b"{}")

    def _access(self, version: str) -> None:
        if version not in self.state.secrets:
            return self._answer(404, [], b"{}")
        data = base64.b64encode(self.state.secrets[version].encode()).decode()
        return self._answer(200, [], json.dumps({"payload": {"data": data}}).encode())

    def _forward(self, method: str, path: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        backend = urllib.parse.urlsplit(self.state.backend)
        connection = http.client.HTTPConnection(backend.hostname or "", backend.port, timeout=HANG_S)
        dropped = {"connection", "transfer-encoding", "content-length", "accept-encoding"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        answer = reply.status, reply.getheaders(), b"" if method == "HEAD" else reply.read()
        connection.close()
        return answer

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _handle


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a CA and a certificate for storage.googleapis.com; return (CA, certificate with key)."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "boot lab")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "storage.googleapis.com")])

    def certificate(name: x509.Name, public: Any, ca: bool) -> x509.Certificate:
        builder = x509.CertificateBuilder(issuer, name, public, x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        names = x509.SubjectAlternativeName(
            [x509.DNSName(f"{api}.googleapis.com") for api in ("storage", "logging", "secretmanager")]
        )
        return builder.add_extension(names, critical=False).sign(ca_key, hashes.SHA256())

    pem = serialization.Encoding.PEM
    ca_file, server_file = folder / "ca.pem", folder / "server.pem"
    ca_file.write_bytes(certificate(issuer, ca_key.public_key(), True).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    server_file.write_bytes(certificate(subject, key.public_key(), False).public_bytes(pem) + private)
    return ca_file, server_file

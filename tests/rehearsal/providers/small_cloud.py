"""A few of Google's APIs on loopback, just enough for one small program: it keeps what it is given.

It validates nothing; the emulated cloud of the rehearsal does. It keeps a list of requests that
change something, so that a test can say "nothing was sent".
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Json = dict[str, Any]
DONE = {"kind": "compute#operation", "name": "operation-1", "status": "DONE"}
LINK = "https://www.googleapis.com/compute/beta/"


@dataclass
class SmallCloud:
    """Resources by path, policies by path, and the changes that were asked for."""

    url: str = ""
    resources: dict[str, Json] = field(default_factory=dict)
    policies: dict[str, Json] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def environment(self) -> dict[str, str]:
        """Variables that lead the provider here."""
        products = ("COMPUTE", "STORAGE", "TPU_V2", "IAM", "RESOURCE_MANAGER", "SERVICE_USAGE")
        roots = ("compute", "storage", "tpu", "iam", "crm", "usage")
        return {
            f"GOOGLE_{product}_CUSTOM_ENDPOINT": f"{self.url}{root}/"
            for product, root in zip(products, roots, strict=True)
        }

    def answer(self, method: str, target: str, raw: bytes, content_type: str) -> tuple[int, Any]:
        """One request's status and JSON."""
        parts = urlsplit(target)
        root, _, path = parts.path.lstrip("/").partition("/")
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        with self.lock:
            if method != "GET" and "getIamPolicy" not in path:
                self.changes.append(f"{method} {root}/{path}")
            if root == "upload":
                return self._upload(path, query, raw, content_type)
            body: Json = json.loads(raw) if raw else {}
            return getattr(self, f"_{root}")(method, path, query, body)  # type: ignore[no-any-return]

    def _compute(self, method: str, path: str, query: Json, body: Json) -> tuple[int, Any]:
        if path == "projects/42":
            return 200, {"name": "demo"}
        head, _, last = path.rpartition("/")
        if last in ("setLabels", "resize"):
            self.resources[f"compute/{head}"] |= body
            return 200, DONE
        if method == "POST":
            item = f"{path}/{body['name']}"
            linked = {k: LINK + body[k] for k in ("network",) if k in body}
            given = {"id": "7", "selfLink": LINK + item, "labelFingerprint": "f", "fingerprint": "f"}
            self.resources[f"compute/{item}"] = {**body, **linked, **given}
            return 200, DONE
        return self._item(method, f"compute/{path}", body, DONE)

    def _tpu(self, method: str, path: str, query: Json, body: Json) -> tuple[int, Any]:
        done = {"name": "projects/demo/locations/z/operations/1", "done": True}
        if method == "POST":
            item = f"{path}/{query['nodeId']}"
            endpoints = [{"ipAddress": "10.0.0.2", "port": 8470, "accessConfig": {}}]
            self.resources[f"tpu/{item}"] = {
                **body,
                "name": item,
                "state": "READY",
                "networkEndpoints": endpoints,
            }
            return 200, done
        return self._item(method, f"tpu/{path}", body, done)

    def _iam(self, method: str, path: str, query: Json, body: Json) -> tuple[int, Any]:
        if method == "POST":
            email = f"{body['accountId']}@demo.iam.gserviceaccount.com"
            account = {**body["serviceAccount"], "name": f"{path}/{email}", "email": email, "etag": "e"}
            self.resources[f"iam/{path}/{email}"] = account
            return 200, account
        return self._item(method, f"iam/{path}", body.get("serviceAccount", {}), {})

    def _crm(self, method: str, path: str, query: Json, body: Json) -> tuple[int, Any]:
        if path.endswith("IamPolicy"):
            return self._policy(path.partition(":")[0], body.get("policy"))
        return 200, {"projectId": "demo", "projectNumber": "42", "name": "demo"}

    def _usage(self, method: str, path: str, query: Json, body: Json) -> tuple[int, Any]:
        if method == "GET":
            return 200, {"services": [{"name": f"projects/42/services/{name}"} for name in self.services]}
        self.services |= set(body.get("serviceIds") or [path.rpartition("/")[2].partition(":")[0]])
        return 200, {"name": "operations/acat.1", "done": True}

    def _storage(self, method: str, path: str, query: Json, body: Json) -> tuple[int, Any]:
        if path.endswith("/iam"):
            return self._policy(path, body if method == "PUT" else None)
        if path.endswith("/anywhereCaches/"):
            return 200, {}
        if path.endswith("/o"):
            return 200, {
                "items": [r for key, r in self.resources.items() if key.startswith(f"storage/{path}/")]
            }
        if method == "POST":
            bucket = {**body, "id": body["name"], "projectNumber": "42"}
            self.resources[f"storage/b/{body['name']}"] = bucket
            return 200, bucket
        return self._item(method, f"storage/{unquote(path)}", body, None)

    def _upload(self, path: str, query: Json, raw: bytes, content_type: str) -> tuple[int, Any]:
        message: Any = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + raw)
        about, media = (part.get_payload(decode=True) for part in message.get_payload())
        content = media.removesuffix(b"\r\n")
        md5 = base64.b64encode(hashlib.md5(content).digest()).decode()
        stored = {**json.loads(about), "name": query["name"], "md5Hash": md5, "generation": "1"}
        self.resources[f"{path.replace('storage/v1', 'storage')}/{query['name']}"] = stored
        return 200, stored

    def _policy(self, path: str, policy: Json | None) -> tuple[int, Any]:
        if policy is not None:
            self.policies[path] = policy
        return 200, self.policies.get(path, {"etag": "e"})

    def _item(self, method: str, key: str, body: Json, done: Any) -> tuple[int, Any]:
        if key not in self.resources:
            return 404, {"error": {"code": 404, "message": f"{key} was not found"}}
        if method == "DELETE":
            del self.resources[key]
            return 200, done
        if method == "PATCH":
            self.resources[key] |= body
            return 200, done or self.resources[key]
        return 200, self.resources[key]


@contextmanager
def small_cloud() -> Iterator[SmallCloud]:
    """Serve a small cloud on a loopback port."""
    cloud = SmallCloud()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = cloud.answer(
                self.command, self.path, raw, self.headers.get("Content-Type") or ""
            )
            content = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    cloud.url = f"http://127.0.0.1:{server.server_address[1]}/"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield cloud
    finally:
        server.shutdown()
        server.server_close()

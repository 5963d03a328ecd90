"""Recordings of the official provider, and a server that plays Google's side of them."""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from pathlib import Path
from typing import Any

from rehearsal.providers.gcp import terraform
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.table import COMPUTE, RESOURCE_MANAGER
from rehearsal.providers.gcp.types import TYPES
from tests.served import Received, Reply, serving

RECORDINGS = Path(__file__).parent / "recordings"
_SERVICES = {COMPUTE, RESOURCE_MANAGER, *(item.table.service for item in TYPES.values())}
# What stands under a service's origin instead of its base loses the host that the replay puts in the path.
_ORIGINS = {
    "upload/storage/": "storage.googleapis.com/",
}


def momentless(text: str) -> str:
    """`text` without the moments that names end in."""
    return re.sub(r"-20\d{24}", "-a-moment", text)


@dataclass(frozen=True)
class Request:
    """A request in a normal form: equal requests are equal objects."""

    method: str
    path: str
    body: str

    @classmethod
    def of(cls, method: str, path: str, body: Any) -> Request:
        return cls(method, momentless(path), momentless(json.dumps(_comparable(body), sort_keys=True)))


@dataclass(frozen=True)
class Recording:
    """A file: requests of the official provider for a resource, by phase."""

    name: str
    content: Mapping[str, Any]

    @property
    def token(self) -> str:
        return str(self.content["type"])

    def requests(self, phase: str) -> list[Request]:
        """The phase's requests, without look-ups shared between resources."""
        return [
            Request.of(r["method"], r["path"], r["body"])
            for r in self.content["requests"]
            if r["phase"] == phase and not r.get("shared")
        ]


def load(name: str) -> Recording:
    return Recording(name, json.loads((RECORDINGS / f"{name}.json").read_text()))


def shared_requests() -> dict[tuple[str, str], tuple[int, Any]]:
    """Look-ups that the recordings can't attribute to one resource, with their answers."""
    mapping = {}
    for file in RECORDINGS.glob("*.json"):
        for r in json.loads(file.read_text())["requests"]:
            if r.get("shared"):
                mapping[r["method"], r["path"]] = (r["status"], r["response"])
    return mapping


SHARED = shared_requests()
_Answers = dict[tuple[str, str, str], list[tuple[int, Any]]]


@dataclass
class Google:
    """The server: answers as recorded, in order, and keeps the requests."""

    recording: Recording
    url: str = ""
    phase: str = ""
    sent: dict[str, list[Request]] = field(default_factory=lambda: defaultdict(list))
    unexpected: list[str] = field(default_factory=list)
    _answers: _Answers = field(default_factory=lambda: defaultdict(list))
    _shared: _Answers = field(default_factory=lambda: defaultdict(list))
    _policy: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for r in self.recording.content["requests"]:
            answers = self._shared if r.get("shared") else self._answers
            answers[r["phase"], r["method"], momentless(r["path"])].append((r["status"], r["response"]))

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """The next recorded answer; the last one stays. What wasn't recorded is 599."""
        path = momentless(path)
        with self._lock:
            shared = self._shared[self.phase, method, path]
            if shared and "instanceGroupManagers" in path:
                return shared[-1]  # the first ones are of before this resource's group was there
            if shared:
                return shared.pop(0) if len(shared) > 1 else shared[0]
            if (method, path) in SHARED:
                return SHARED[method, path]
            changed = any(item.method != "GET" for item in self.sent[self.phase])
            self.sent[self.phase].append(Request.of(method, path, body))
            reads_policy = ":getIamPolicy" in path or ("/iam?" in path and method == "GET")
            if reads_policy and self._policy is not None:
                return 200, self._policy  # read back as written, however the readers take turns
            answers = self._answers[self.phase, method, path]
            if not answers:
                self.unexpected.append(f"{self.phase}: {method} {path}")
                return 418, {
                    "error": {"code": 418, "message": f"not recorded in {self.phase}: {method} {path}"}
                }
            if changed and method == "GET" and "/clusters/" in path:
                return answers[-1]  # the official provider looks more often before it changes a cluster
            status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if "/iam?" in path or "IamPolicy" in path:
                self._policy = answer
            return status, answer

    def settings(self, **others: Any) -> Settings:
        """Provider settings that lead here."""
        roots = {service.setting: terraform.product(service.product).base for service in _SERVICES}
        endpoints = {setting: root.replace("https://", self.url) for setting, root in roots.items()}
        return Settings(project="wire-test", access_token="token", endpoints=endpoints, **others)


@contextmanager
def google(recording: Recording) -> Iterator[Google]:
    """Play one recording on a loopback port."""
    played = Google(recording)

    def answer(request: Received) -> Reply:
        path = request.target.lstrip("/")
        path = next((host for start, host in _ORIGINS.items() if path.startswith(start)), "") + path
        body = _parse(request.body, request.headers.get("Content-Type") or "")
        status, content = played.answer(request.method, path, body)
        return Reply(status, b"" if content is None else content)

    with serving(answer) as address:
        played.url = f"http://{address}/"
        yield played


def _parse(raw: bytes, content_type: str) -> Any:
    if not raw:
        return None
    if content_type.startswith("multipart/"):
        return {"__raw": raw.decode(), "__contentType": content_type}
    return json.loads(raw)


def _comparable(body: Any) -> Any:
    """A body without what may differ by itself: see the known differences in docs/internals/standin.md."""
    if isinstance(body, Mapping):
        if "__raw" in body:
            return _multipart(body["__raw"], body["__contentType"])
        return {key: _comparable_entry(key, value) for key, value in body.items()}
    if isinstance(body, list):
        return [_comparable(item) for item in body]
    return body


def _comparable_entry(key: str, value: Any) -> Any:
    if key == "nextRotationTime":
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", value)
        return "a moment"
    if key in ("allowed", "denied", "serviceIds"):
        return sorted((_comparable(item) for item in value), key=json.dumps)
    return _comparable(value)


def _multipart(raw: str, content_type: str) -> Any:
    message: Any = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n{raw}".encode())
    about, media = message.get_payload()
    return [json.loads(about.get_payload()), media.get_content_type(), media.get_payload()]

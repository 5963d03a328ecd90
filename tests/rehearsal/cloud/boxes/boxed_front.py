"""A whole cloud in a network of its own, where processes reach it by Google's names and addresses.

Its thread has a network and mounts of its own, which every process that it starts inherits.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rehearsal import authority
from rehearsal.cloud.config import CloudConfig
from rehearsal.cloud.core.runtime import HttpRequest, Reply
from rehearsal.world import names
from tests.emulated import OWNER, Emulated
from tests.limits import until

PROJECT, REGION = "boxed", "us-east5"
P = f"projects/{PROJECT}"
L = f"{P}/locations/{REGION}"
APIS = (
    *("artifactregistry", "cloudbuild", "cloudfunctions", "cloudscheduler", "compute", "dataproc"),
    *("eventarc", "iam"),
    *("logging", "pubsub", "run", "storage"),
)
_NEWNS, _NEWNET, _FS = 0x00020000, 0x40000000, 0x00000200
_JSON = {"Content-Type": "application/json"}


class Boxed(Emulated):
    """The cloud; `more` is of its configuration."""

    def __init__(self, folder: Path, project: str = PROJECT, **more: Any) -> None:
        self.project, self.folder = project, folder
        addresses = {"front_door": CloudConfig.front_door, "metadata": CloudConfig.metadata}
        apis = tuple(f"{api}.googleapis.com" for api in APIS)
        super().__init__(folder, project, **{**addresses, "clock_rate": 20.0, "enabled_apis": apis, **more})

    def _run(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NEWNS | _NEWNET | _FS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        super()._run()

    async def _open(self, config: CloudConfig) -> None:
        (self.folder / "hosts").write_text(names.hosts_file())
        tls = self.tls = authority.issue(self.folder / "tls", names.CERTIFICATE_NAMES, [names.FRONT_DOOR])
        for line in (
            ["mount", "--make-rprivate", "/"],
            ["mount", "-t", "tmpfs", "tmpfs", "/run"],
            ["mount", "--bind", str(self.folder / "hosts"), "/etc/hosts"],
            ["ip", "link", "set", "lo", "up"],
            *(
                ["ip", "address", "add", f"{item}/32", "dev", "lo"]
                for item in (names.FRONT_DOOR, names.METADATA)
            ),
        ):
            subprocess.run(line, check=True, capture_output=True)
        variables = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[4]),
            **dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(tls.bundle)),
        }
        certificate = {"certificate": tls.certificate, "key": tls.key, "ca_certificate": tls.ca}
        await super()._open(replace(config, builder=variables, **certificate))

    def send(self, method: str, url: str, body: Any = None, account: str = OWNER) -> Reply:
        """Send a request to `HOST/PATH`; a body that isn't bytes is sent as JSON."""
        kind = {} if body is None or isinstance(body, bytes) else _JSON
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = HttpRequest(method, f"https://{url}", kind, data, "OAuth2", "", 60)
        reply: Reply = self.call(self.cloud.caller.send(request, account))
        return reply

    def answer(self, method: str, url: str, body: Any = None) -> Any:
        """The answer's JSON, which must be fine."""
        reply = self.send(method, url, body)
        assert reply.status < 300, reply.body
        return json.loads(reply.body or b"{}")

    def bucket(self, name: str) -> None:
        body = {"name": name, "location": REGION}
        self.answer("POST", f"storage.googleapis.com/storage/v1/b?project={self.project}", body)

    def upload(self, name: str, content: bytes, bucket: str = "raw") -> None:
        self.answer(
            "POST",
            f"storage.googleapis.com/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}",
            content,
        )

    def read(self, name: str, bucket: str = "raw") -> bytes:
        reply = self.send("GET", f"storage.googleapis.com/storage/v1/b/{bucket}/o/{name}?alt=media")
        assert reply.status == 200, reply.body
        return reply.body

    def account(self, name: str, *roles: str) -> str:
        """A service account with these roles on the project; its address."""
        self.answer("POST", f"iam.googleapis.com/v1/{P}/serviceAccounts", {"accountId": name})
        email = f"{name}@{PROJECT}.iam.gserviceaccount.com"
        for role in roles:
            self.grant(P, role, f"serviceAccount:{email}")
        return email

    def done(self, host: str, operation: Any) -> Any:
        """An operation, once it is done."""
        url = f"{host}/{operation['name']}"
        return until(lambda: (operation := self.answer("GET", url)).get("done") and operation)

    def compute(self, path: str, body: Any) -> None:
        started = self.answer("POST", f"compute.googleapis.com/compute/v1/{P}/{path}", body)
        link = started["selfLink"].removeprefix("https://www.googleapis.com/")
        assert "error" not in self.answer("POST", f"compute.googleapis.com/{link}/wait")

    def logged(self, matching: str) -> list[Any]:
        """Entries of Cloud Logging, oldest first."""
        body = {"resourceNames": [P], "filter": matching, "orderBy": "timestamp asc", "pageSize": 1000}
        entries: list[Any] = self.answer("POST", "logging.googleapis.com/v2/entries:list", body).get(
            "entries", []
        )
        return entries

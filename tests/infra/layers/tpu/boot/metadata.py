"""A metadata server for one host: its attributes are a dict that a test may change.

Guest attributes as https://cloud.google.com/compute/docs/metadata/manage-guest-attributes describes them, but
that what is beyond the documented rate is kept here: a test looks at the times.
"""

from __future__ import annotations

import http.server
import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any

TOKEN = {"access_token": "lab-token", "expires_in": 3599, "token_type": "Bearer"}


@dataclass
class Metadata:
    """Values by key below `computeMetadata/v1/`."""

    values: dict[str, str] = field(default_factory=dict)
    # What was written of `instance/guest-attributes/`: when (monotonic), key, value.
    written: list[tuple[float, str, str]] = field(default_factory=list)

    def reports(self, key: str = "tpu/boot") -> list[dict[str, Any]]:
        """Return the values written to a guest attribute, the newest last."""
        return [json.loads(value) for _, written, value in self.written if written == key]

    def set(self, key: str, value: str | None) -> None:
        """Set an attribute of the instance; None removes it."""
        if value is None:
            self.values.pop(f"instance/attributes/{key}", None)
        else:
            self.values[f"instance/attributes/{key}"] = value

    def server(self, listener: socket.socket | None = None) -> http.server.ThreadingHTTPServer:
        """Serve on an already listening socket, or on a free port of loopback."""
        values, written = self.values, self.written

        class Handler(_Handler):
            state = values
            guest = written

        if listener is None:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        else:
            server = http.server.ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
            server.socket.close()
            server.socket = listener
        server.daemon_threads = True
        return server


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: dict[str, str]
    guest: list[tuple[float, str, str]]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        key = self.path.split("?")[0].removeprefix("/computeMetadata/v1/")
        if key == "instance/service-accounts/default/token":
            status, body = 200, json.dumps(TOKEN)
        elif self.headers.get("Metadata-Flavor") != "Google" and key != "/":
            status, body = 403, "missing the header Metadata-Flavor: Google"
        else:
            status, body = (200, self.state[key]) if key in self.state else (404, "not found")
        self._answer(status, body)

    def do_PUT(self) -> None:
        value = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        prefix, _, key = self.path.partition("/guest-attributes/")
        if self.headers.get("Metadata-Flavor") != "Google" or prefix != "/computeMetadata/v1/instance":
            self._answer(403, "no")
        elif self.state.get("instance/attributes/enable-guest-attributes") != "TRUE":
            self._answer(403, "Guest attributes endpoint access is disabled.")
        else:
            self.guest.append((time.monotonic(), key, value))
            self._answer(200, "")

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json" if body.startswith("{") else "application/text")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


def worker(bucket: str, bundle: str, worker: int = 0, workers: int = 1, **attributes: str) -> Metadata:
    """Return the metadata of one worker of the slice `tpu-lab`."""
    endpoints = ",".join(f"unknown:unknown:10.0.0.{k + 2}" for k in range(workers))
    standard = {
        "tpu-slice": "tpu-lab",
        "tpu-zone": "us-east5-b",
        "tpu-workers": str(workers),
        "tpu-bucket": bucket,
        "tpu-steps-bucket": f"{bucket}-steps",
        "tpu-bundle": bundle,
        "tpu-barrier-timeout-s": "20",
        "tpu-metadata-timeout-s": "6",
        "enable-guest-attributes": "TRUE",
        "accelerator-type": "v6e-16",
        "agent-worker-number": str(worker),
        "worker-network-endpoints": endpoints,
    }
    metadata = Metadata({"instance/id": "4711", "project/project-id": "lab"})
    for key, value in (standard | attributes).items():
        metadata.set(key.replace("_", "-"), value)
    return metadata

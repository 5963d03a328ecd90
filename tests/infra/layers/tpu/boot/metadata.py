"""A metadata server for one host: its attributes are a dict that a test may change.

Guest attributes as https://cloud.google.com/compute/docs/metadata/manage-guest-attributes describes them, but
that what is beyond the documented rate is kept here: a test looks at the times.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from tests.served import Received, Reply

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

    def answer(self, request: Received) -> Reply:
        """Answer a request; see `tests.served`."""
        status, body = (self._put if request.method == "PUT" else self._get)(request)
        kind = "application/json" if body.startswith("{") else "application/text"
        return Reply(status, body.encode(), [("Metadata-Flavor", "Google"), ("Content-Type", kind)])

    def _get(self, request: Received) -> tuple[int, str]:
        key = request.path.removeprefix("/computeMetadata/v1/")
        if key == "instance/service-accounts/default/token":
            return 200, json.dumps(TOKEN)
        if request.headers.get("Metadata-Flavor") != "Google" and key != "/":
            return 403, "missing the header Metadata-Flavor: Google"
        return (200, self.values[key]) if key in self.values else (404, "not found")

    def _put(self, request: Received) -> tuple[int, str]:
        prefix, _, key = request.path.partition("/guest-attributes/")
        if request.headers.get("Metadata-Flavor") != "Google" or prefix != "/computeMetadata/v1/instance":
            return 403, "no"
        if self.values.get("instance/attributes/enable-guest-attributes") != "TRUE":
            return 403, "Guest attributes endpoint access is disabled."
        self.written.append((time.monotonic(), key, request.body.decode()))
        return 200, ""


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

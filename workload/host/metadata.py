"""Client of the metadata server: this host's description, and its guest attributes.

docs/internals/architecture.md lists the keys. `GCE_METADATA_HOST` selects another server, as for Google's
own client libraries.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Self

from workload.host.errors import MetadataError
from workload.place import PORT, Place

_TIMEOUT_S = 10.0
_PATIENCE_S = 10.0
_PAUSE_S = 0.5
_WRITE_TIMEOUT_S = 2.0
_WRITE_TRIES = 2
_TRANSIENT = (500, 502, 503, 504)
_DEFAULT_BARRIER_TIMEOUT_S, _DEFAULT_METADATA_TIMEOUT_S = 900.0, 3600.0


def read(key: str) -> str | None:
    """Return the value of `key`, e.g. `instance/id`; None if the server has none.

    Retries for 10 s while the server doesn't answer (it restarts now and then); then raises
    `MetadataError`.
    """
    url = _url(key)
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
                text: str = reply.read().decode(errors="replace")
                return text
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            failure = MetadataError(f"{url}: HTTP {error.code}")
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            failure = MetadataError(f"{url}: {error}: is this a TPU host?")
        if time.monotonic() + _PAUSE_S > give_up:
            raise failure
        time.sleep(_PAUSE_S)


def write_guest_attribute(key: str, value: str) -> None:
    """Set a guest attribute of this machine, e.g. `tpu/job`, within 5 s. Raises `MetadataError`.

    Google accepts ten queries a minute from a machine and drops writes beyond them:
    cloud.google.com/compute/docs/metadata/manage-guest-attributes.
    """
    url = _url(f"instance/guest-attributes/{key}")
    headers = {"Metadata-Flavor": "Google", "Content-Type": "text/plain"}
    request = urllib.request.Request(url, data=value.encode(), headers=headers, method="PUT")
    failure = MetadataError(url)
    for attempt in range(_WRITE_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            with urllib.request.urlopen(request, timeout=_WRITE_TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            failure = MetadataError(f"{url}: HTTP {error.code}")
            if error.code not in _TRANSIENT:
                break
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            failure = MetadataError(f"{url}: {error}")
    raise failure


def access_token() -> str:
    """Return a token of the attached service account; the server renews it as needed."""
    key = "instance/service-accounts/default/token"
    text = read(key)
    if text is None:
        raise MetadataError(f"{key}: the node has no service account")
    token = json.loads(text).get("access_token")
    if not isinstance(token, str):
        raise MetadataError(f"{key}: the reply holds no access_token")
    return token


@dataclass(frozen=True)
class Meeting:
    """Participants of a barrier: the workers of a slice, or of the slices of a job."""

    name: str
    worker: int
    workers: int
    slices: tuple[str, ...]  # slice-major: the workers of the first slice come first

    def who(self, worker: int) -> tuple[str, int]:
        """Return a worker's slice, and its number in it."""
        per_slice = self.workers // len(self.slices)
        return self.slices[worker // per_slice], worker % per_slice


@dataclass(frozen=True)
class HostDescription:
    """Description of a worker of a slice, from its metadata."""

    name: str
    worker: int
    workers: int
    bucket: str
    barrier_timeout_s: float
    job: str = ""  # name shared by the slices of a job; empty for a slice alone
    slices: tuple[str, ...] = ()  # all of the job, in the same order on each
    metadata_timeout_s: float = 0.0  # for keys that Google writes late

    @classmethod
    def from_metadata(cls) -> Self:
        """Read this host's own description; a missing worker number never counts as 0."""
        workers = _number("tpu-workers")
        worker = _number("agent-worker-number")
        if not 0 <= worker < workers:
            raise MetadataError(f"agent-worker-number is {worker}, but tpu-workers is {workers}")
        name = _required("tpu-slice")
        listed = read("instance/attributes/tpu-slices") or ""
        slices = tuple(listed.split(",")) if listed else ()
        if slices and (slices.count(name) != 1 or len(set(slices)) != len(slices)):
            raise MetadataError(f"the node's metadata has tpu-slices='{listed}', without '{name}' once in it")
        return cls(
            name=name,
            worker=worker,
            workers=workers,
            bucket=_required("tpu-bucket"),
            barrier_timeout_s=_seconds("tpu-barrier-timeout-s", _DEFAULT_BARRIER_TIMEOUT_S),
            job=_required("tpu-job") if slices else "",
            slices=slices,
            metadata_timeout_s=_seconds("tpu-metadata-timeout-s", _DEFAULT_METADATA_TIMEOUT_S),
        )

    @property
    def slice_id(self) -> int:
        """Index of this slice in its job."""
        return self.slices.index(self.name) if self.slices else 0

    def meeting(self, phase: str) -> Meeting:
        """Return the participants: in the boot this slice's workers, else those of all slices of the job."""
        if phase == "boot" or not self.slices:
            return Meeting(self.name, self.worker, self.workers, (self.name,))
        place = self.place()
        return Meeting(self.job, place.number, place.workers, self.slices)

    def place(self, coordinator: str = "", port: int = PORT) -> Place:
        """Return this worker's place in its job; `coordinator`: address of worker 0 of the first slice."""
        return Place(self.slice_id, max(1, len(self.slices)), self.worker, self.workers, coordinator, port)


def _url(key: str) -> str:
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    return f"http://{host}/computeMetadata/v1/{key}"


def _required(key: str) -> str:
    value = read(f"instance/attributes/{key}")
    if not value:
        raise MetadataError(f"the node's metadata has no '{key}': was the node made by the tpu stack?")
    return value


def _number(key: str) -> int:
    value = _required(key)
    if not value.isascii() or not value.isdecimal():
        raise MetadataError(f"the node's metadata has {key}='{value}', which is not a number")
    return int(value)


def _seconds(key: str, default: float) -> float:
    text = read(f"instance/attributes/{key}")
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86400:
        raise MetadataError(f"the node's metadata has {key}='{text}', not seconds up to a day")
    return seconds

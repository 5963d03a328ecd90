"""Locks on a stack, and whether their holders are gone.

A backend that Pulumi keeps by itself (a folder, a bucket) holds a lock as an object
`.pulumi/locks/organization/PROJECT/STACK/ID.json`, with user, host, process and time
(backend/diy/lock.go of Pulumi 3.220). A killed process leaves its lock permanently. Pulumi Cloud has no such
objects; there a lock ends by itself, or by `pulumi cancel`.
"""

import json
import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from infra.core.layer import directory
from infra.engine.pulumi import Pulumi
from infra.errors import CommandError

_LOCKS, _STACKS = ".pulumi/locks/organization", ".pulumi/stacks"
_TOLERANCE_S = 1.0  # two clocks tell a process's start and a lock's time: so much they may differ


@dataclass(frozen=True)
class Lock:
    """Lock on a stack: its holder and time."""

    user: str
    host: str
    pid: int
    since: datetime

    def __str__(self) -> str:
        return f"{self.user}@{self.host} (pid {self.pid}) at {self.since:%Y-%m-%d %H:%M:%S %Z}"

    @property
    def gone(self) -> bool:
        """True if the process is known to be gone: none of that number on this host dates from then."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        state, started_s = _state(self.pid)
        return state == "Z" or started_s > self.since.timestamp() + _TOLERANCE_S


def locks(pulumi: Pulumi, layer: str) -> list[Lock]:
    """Return all locks on a layer's stack; none unless the backend is a folder or a bucket of Cloud Storage.

    Raises CommandError where they can't be read.
    """
    try:
        return [_parse(text) for text in _texts(pulumi.backend(), f"{_LOCKS}/{layer}/{pulumi.environment}/")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        cancel = f"pulumi -C {directory(layer)} cancel -s {pulumi.environment} --yes"
        raise CommandError(
            f"the locks of {layer} can't be read: {error}\n    fix: if no update is running: {cancel}"
        ) from error


def torn(pulumi: Pulumi, layer: str) -> list[Path]:
    """Files of a layer's stack in a folder as backend that a killed `pulumi` left empty.

    Beside each file lies one `.attrs` with its checksum. The file is replaced whole, the other one is not,
    and an empty one makes Pulumi fail with "failed to load checkpoint: EOF"; without one it reads the file.
    """
    place = _folder(pulumi.backend())
    if place is None:
        return []
    paths = [
        *(place / _STACKS / layer).glob(f"{pulumi.environment}.json*.attrs"),
        *(place / _LOCKS / layer / pulumi.environment).glob("*.attrs"),
    ]
    return sorted(path for path in paths if path.stat().st_size == 0)


def _folder(backend: str) -> Path | None:
    """Return a backend's folder; `file://~` and `file://.` are spellings of `pulumi login`.

    Pulumi takes `~` from the password database, and HOME where that lacks the user.
    """
    parts = urlsplit(backend)
    if parts.scheme != "file":
        return None
    text = f"{parts.netloc}{parts.path}"
    if text.startswith("~"):
        with suppress(KeyError):
            text = f"{pwd.getpwuid(os.getuid()).pw_dir}/{text[1:]}"
    return Path(text).expanduser()


def _texts(backend: str, folder: str) -> Iterator[bytes]:
    parts, place = urlsplit(backend), _folder(backend)
    if place is not None:
        for path in sorted((place / folder).glob("*")):
            if path.suffix != ".attrs":
                yield path.read_bytes()
    elif parts.scheme == "gs":
        yield from _objects(parts.netloc, f"{parts.path.strip('/')}/{folder}".lstrip("/"))


def _objects(bucket: str, prefix: str) -> Iterator[bytes]:
    from google.api_core.exceptions import GoogleAPIError  # half a second, which a folder doesn't cost
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import storage

    try:
        for blob in storage.Client(project="none").list_blobs(bucket, prefix=prefix):
            yield blob.download_as_bytes()
    except (GoogleAPIError, GoogleAuthError) as error:
        raise OSError(str(error)) from error


def _parse(text: bytes) -> Lock:
    lock = json.loads(text)
    return Lock(
        str(lock["username"]),
        str(lock["hostname"]),
        int(lock["pid"]),
        datetime.fromisoformat(lock["timestamp"]),
    )


def _state(pid: int) -> tuple[str, float]:
    """Return a process's state letter (Z: dead, not reaped yet) and its start, in seconds since the epoch; ""
    and 0 where this system has no proc(5).
    """
    try:
        # Fields are counted from behind the name, which may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        booted = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text().splitlines()
            if line.startswith("btime")
        )
        return fields[0], booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return "", 0.0

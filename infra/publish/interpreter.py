"""The interpreter of a bundle, as an archive that unpacks to `python/bin/python3`.

A pinned python-build-standalone archive where it can be downloaded; else this machine's
own Python, packed. The pins are data: `pins.json`.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import platform
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from infra.publish import archive as archives
from infra.publish import pack
from infra.publish.bundle import sha256_of
from infra.publish.errors import PublishError
from infra.publish.wheels import HOST_GLIBC_MINOR, cache_dir

__all__ = ["Interpreter", "choose"]

_CONNECT_TIMEOUT_S = 5.0
_UNREACHABLE_FOR_S = 3600.0


@dataclass(frozen=True)
class Interpreter:
    """The chosen archive, and why it was chosen, for the person who publishes."""

    archive: Path
    why: str


@dataclass(frozen=True)
class _Pin:
    version: str
    url: str
    sha256: str


def choose(*, for_tpu: bool = False) -> Interpreter:
    """Return an archive with this Python's minor version for x86-64 Linux.

    With `for_tpu` it must run on a TPU VM's image; `PublishError` where none can be had that does.
    """
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    pin = _pin(minor)
    archive = cache_dir("interpreters") / f"{pin.sha256}.tar.gz"
    if archive.exists() and sha256_of(archive) == pin.sha256:
        return Interpreter(archive, f"Python {pin.version} of python-build-standalone (cached)")
    unreachable = _download(pin, archive, ask_again=for_tpu)
    if unreachable is None:
        return Interpreter(archive, f"Python {pin.version} of python-build-standalone")
    packed = _packed(unreachable)
    if for_tpu and (minor_needed := pack.glibc_minor(packed.archive)) > HOST_GLIBC_MINOR:
        raise PublishError(
            f"python-build-standalone can't be downloaded ({unreachable}), and this machine's own Python "
            f"needs glibc 2.{minor_needed}, where TPU hosts have 2.{HOST_GLIBC_MINOR}: each would stop in "
            f"its stage python. Publish from where it can be downloaded, or save {pin.url} as {archive}"
        )
    return packed


def _pin(minor: str) -> _Pin:
    pins = json.loads((resources.files(__package__) / "pins.json").read_text("utf-8"))["interpreters"]
    if minor not in pins:
        raise PublishError(
            f"no interpreter is pinned for Python {minor}: publish with one of {', '.join(pins)}"
        )
    return _Pin(**pins[minor])


def _download(pin: _Pin, archive: Path, *, ask_again: bool) -> str | None:
    """Put the pinned archive at `archive`; return None, or why it can't (lately couldn't) be reached."""
    note = archive.with_suffix(".unreachable")
    if not ask_again and note.exists() and time.time() - note.stat().st_mtime < _UNREACHABLE_FOR_S:
        return note.read_text("utf-8")
    part = _part(archive)
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(pin.url, timeout=_CONNECT_TIMEOUT_S) as reply, part.open("wb") as file:
            while block := reply.read(1 << 20):
                digest.update(block)
                file.write(block)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = str(getattr(error, "reason", error))
        note.write_text(reason, "utf-8")
        return reason
    if digest.hexdigest() != pin.sha256:
        part.unlink()
        raise PublishError(
            f"{pin.url} has sha256 {digest.hexdigest()}, not {pin.sha256}: don't use that connection"
        )
    part.replace(archive)
    return None


def _part(archive: Path) -> Path:
    """Return a temporary path for `archive` that no other process uses."""
    return archive.with_name(f"{archive.name}.{os.getpid()}.part")


def _packed(unreachable: str) -> Interpreter:
    executable = Path(
        sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"
    ).resolve()
    facts = [
        sys.version,
        sys.base_prefix,
        *map(sha256_of, (executable, *(Path(str(module.__file__)) for module in (pack, archives)))),
    ]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
    archive = cache_dir("interpreters") / f"packed-{key}.tar.gz"
    note = archive.with_suffix(".needs")
    if not archive.exists() or not note.exists():
        part = _part(archive)
        needs = pack.pack_running(part)
        note.write_text(", ".join(needs), "utf-8")
        part.replace(archive)
    libc = " ".join(platform.libc_ver())
    libraries = note.read_text("utf-8")
    return Interpreter(
        archive,
        f"Python {platform.python_version()} of this machine, packed, because python-build-standalone can't "
        f"be downloaded ({unreachable}). Hosts need {libc} or newer"
        + (f" and these shared libraries: {libraries}" if libraries else ""),
    )

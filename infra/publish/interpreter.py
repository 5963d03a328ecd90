"""The interpreter of a bundle, as an archive that unpacks to `python/bin/python3`.

The python-build-standalone archive that the locked uv pins by its hash, where uv can download it; else this
machine's own Python, packed.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import uv

from infra.publish import archive as archives
from infra.publish import pack
from infra.publish.bundle import sha256_of
from infra.publish.cache import cache_dir, key_of, once
from infra.publish.errors import PublishError
from infra.publish.wheels import HOST_GLIBC_MINOR, PYTHON

__all__ = ["Interpreter", "choose"]


@dataclass(frozen=True)
class Interpreter:
    """The chosen archive, why it was chosen, and whether that is new to the person who publishes."""

    archive: Path
    why: str
    new: bool = field(default=True, compare=False)


def choose(*, for_tpu: bool = False) -> Interpreter:
    """Return an archive with this Python's minor version for x86-64 Linux.

    With `for_tpu` it must run on a TPU VM's image; `PublishError` where none can be had that does.
    """
    folder = cache_dir("interpreters", f"uv-{version('uv')}-python-{PYTHON}")
    downloaded = _download(folder)
    if isinstance(downloaded, Interpreter):
        return downloaded
    packed = _packed(downloaded)
    if for_tpu and (needed := pack.glibc_minor(packed.archive)) > HOST_GLIBC_MINOR:
        raise PublishError(
            f"python-build-standalone can't be downloaded ({downloaded}), and this machine's own Python "
            f"needs glibc 2.{needed}, where TPU hosts have 2.{HOST_GLIBC_MINOR}: each would stop in its "
            "stage python. Publish from where it can be downloaded, name a mirror by "
            f"UV_PYTHON_INSTALL_MIRROR, or copy {folder} from a machine that has published"
        )
    return packed


def _download(folder: Path) -> Interpreter | str:
    """Let uv put the archive that it pins into `folder`, or check that one; the reason where it can't."""
    settings = {"UV_PYTHON_CACHE_DIR": str(folder), "UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "5"}
    for _ in range(2):
        new = not any(folder.glob("*.tar.gz"))
        # uv checks the hash while it unpacks. Only the archive is used: uv writes its place into the files.
        with tempfile.TemporaryDirectory(prefix="python.") as place:
            command = [
                *(uv.find_uv_bin(), "python", "install", "--no-bin", "--no-config"),
                *("--install-dir", place, f"cpython-{PYTHON}-linux-x86_64-gnu"),
            ]
            environment = os.environ | settings
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        archives = list(folder.glob("*.tar.gz"))
        if done.returncode == 0 and archives:
            name = archives[0].name.partition("-")[2]  # after the beginning of its hash
            return Interpreter(archives[0], f"{name} of python-build-standalone", new)
        for damaged in archives:
            damaged.unlink()
    return next(iter(re.findall(r"cause: (.+)", done.stderr)[::-1]), done.stderr.strip())


def _packed(unreachable: str) -> Interpreter:
    executable = Path(sys.base_prefix, "bin", f"python{PYTHON}").resolve()
    facts = [
        sys.version,
        sys.base_prefix,
        *map(sha256_of, (executable, *(Path(str(module.__file__)) for module in (pack, archives)))),
    ]
    path = cache_dir("interpreters") / f"packed-{key_of(*facts)}.tar.gz"
    note, new = path.with_suffix(".needs"), not path.exists()
    archive = once(path, lambda made: note.write_text(", ".join(pack.pack_running(made)), "utf-8"))
    libraries = note.read_text("utf-8")
    return Interpreter(
        archive,
        f"Python {platform.python_version()} of this machine, packed, because python-build-standalone can't "
        f"be downloaded ({unreachable}). Hosts need {' '.join(platform.libc_ver())} or newer"
        + (f" and these shared libraries: {libraries}" if libraries else ""),
        new,
    )

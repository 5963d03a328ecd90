"""The wheels of a bundle: the workload's own, and exactly those that its lock names."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from infra.publish.errors import PublishError

__all__ = ["HOST_GLIBC_MINOR", "ROOT", "build_workload", "cache_dir", "locked", "run"]

ROOT = Path(__file__).resolve().parents[2]

HOST_GLIBC_MINOR = 35
"""TPU VM images for v6e are Ubuntu 22.04, whose glibc is 2.35."""

# pip takes a wheel for any of the platforms named to it and derives no older one from a newer.
_GLIBC_MINORS = range(17, HOST_GLIBC_MINOR + 1)
_PLATFORMS = (
    "linux_x86_64",
    "manylinux2014_x86_64",
    *(f"manylinux_2_{minor}_x86_64" for minor in _GLIBC_MINORS),
)


def cache_dir(*parts: str) -> Path:
    """Return a folder of the project's cache, made if it isn't there."""
    base = os.environ.get("TPU_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else (Path(xdg) if xdg else Path.home() / ".cache") / "tpu-pulumi"
    folder = root.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(command: list[str], doing: str, *, cwd: Path | None = None, **environment: str) -> None:
    """Run a program; `PublishError` carries the end of what it printed."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise PublishError(f"{doing} failed (exit status {done.returncode}):\n{tail}")


def build_workload(into: Path, root: Path = ROOT) -> Path:
    """Build the workload's wheel from the tree at `root`; the same tree gives the same bytes."""
    into.mkdir(parents=True, exist_ok=True)
    # hatchling leaves times, owners and the machine out when this is set.
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)]
    run(command, "building the workload's wheel", cwd=root, SOURCE_DATE_EPOCH="1580601600")
    return next(into.glob("tpu_workload-*.whl"))


def locked(lock: Path, version: str = "") -> list[Path]:
    """Return the wheels that `lock` names on x86-64 Linux, for this Python's version or another ("3.11").

    They are downloaded once for each content of the lock, their hashes checked by pip.
    """
    version = version or f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256("\0".join([lock.read_text("utf-8"), version, *_PLATFORMS]).encode()).hexdigest()[:16]
    folder = cache_dir("wheels") / key
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{key}.") as name:
            _download(lock, Path(name), version)
            try:
                Path(name).rename(folder)
            except OSError:
                # Another publish of the same lock was faster.
                if not folder.exists():
                    raise
            Path(name).mkdir(exist_ok=True)
    return sorted(folder.glob("*.whl"))


def _download(lock: Path, into: Path, version: str) -> None:
    # fmt: off
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--require-hashes", "--no-deps", "--only-binary", ":all:",
        "--requirement", str(lock), "--dest", str(into),
        "--python-version", version, "--implementation", "cp",
        "--abi", f"cp{version.replace('.', '')}", "--abi", "abi3", "--abi", "none",
    ]
    # fmt: on
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    run(command, f"downloading the wheels that {lock.name} names")

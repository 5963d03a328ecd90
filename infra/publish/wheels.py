"""The wheels of a bundle: the workload's own, and exactly those that its lock names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from infra.publish.cache import cache_dir, key_of, once
from infra.publish.errors import PublishError
from infra.settings.sources import INSTALLED, PROGRAM, part

__all__ = ["HOST_GLIBC_MINOR", "PYTHON", "build_workload", "locked", "run", "shipped"]

_PROJECT = ("pyproject.toml", "LICENSE")

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Version of hosts' Python: that of the one that publishes."""

HOST_GLIBC_MINOR = 35
"""TPU VM images for v6e are Ubuntu 22.04, whose glibc is 2.35."""

# pip takes a wheel for any of the platforms named to it and derives no older one from a newer.
_GLIBC_MINORS = range(17, HOST_GLIBC_MINOR + 1)
_PLATFORMS = (
    "linux_x86_64",
    "manylinux2014_x86_64",
    *(f"manylinux_2_{minor}_x86_64" for minor in _GLIBC_MINORS),
)


def run(command: list[str], doing: str, *, cwd: Path | None = None, **environment: str) -> str:
    """Run a program, return its output; `PublishError` carries the end of what it printed."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise PublishError(f"{doing} failed (exit status {done.returncode}):\n{tail}")
    return done.stdout


def shipped() -> list[Path]:
    """Return the folders of the packages in the workload's wheel, as pyproject.toml lists them."""
    project = tomllib.loads(part(_PROJECT[0]).read_text("utf-8"))
    return [PROGRAM / name for name in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


def build_workload(into: Path, project: Path | None = None) -> Path:
    """Build the workload's wheel; the same packages give the same bytes.

    Args:
        into: the wheel's folder.
        project: its pyproject.toml, beside the packages; default: those that run.
    """
    into.mkdir(parents=True, exist_ok=True)
    # hatchling leaves times, owners and the machine out when this is set.
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)]
    with tempfile.TemporaryDirectory(prefix="workload.") as copy:
        if project is None and INSTALLED:  # a copy: a wheel has the packages and these files in two folders
            for name in _PROJECT:
                shutil.copyfile(part(name), Path(copy) / name)
            for package in shipped():
                shutil.copytree(package, Path(copy) / package.name, ignore=shutil.ignore_patterns("*.pyc"))
            project = Path(copy)
        doing = "building the workload's wheel"
        run(command, doing, cwd=project or PROGRAM, SOURCE_DATE_EPOCH="1580601600")
    return next(into.glob("tpu_workload-*.whl"))


def locked(lock: Path, version: str = PYTHON) -> list[Path]:
    """Return the wheels that `lock` names on x86-64 Linux, for a Python of this version.

    They are downloaded once for each content of the lock, their hashes checked by pip.
    """
    key = key_of(lock.read_text("utf-8"), version, *_PLATFORMS)
    # uv downloads no wheels without installing them.
    # fmt: off
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--require-hashes", "--no-deps", "--only-binary", ":all:",
        "--requirement", str(lock), "--python-version", version, "--implementation", "cp",
        "--abi", f"cp{version.replace('.', '')}", "--abi", "abi3", "--abi", "none",
    ]
    # fmt: on
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    doing = f"downloading the wheels that {lock.name} names"
    folder = once(cache_dir("wheels") / key, lambda into: run([*command, "--dest", str(into)], doing))
    return sorted(folder.glob("*.whl"))

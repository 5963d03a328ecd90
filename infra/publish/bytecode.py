"""Modules that the trainer imports, compiled once here instead of on every host.

A new host has no bytecode, and its 1,500 modules take 5 CPU seconds to compile: at each
preemption, on every worker. The files are unchecked hash-based pycs (PEP 552): they hold
whatever the times of the sources are, and are right because a host checks them, like the
sources, against the bundle's manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from importlib.util import cache_from_source
from pathlib import Path

from infra.publish import archive
from infra.publish.bundle import sha256_of
from infra.publish.errors import PublishError
from infra.publish.wheels import ROOT, cache_dir, run

__all__ = ["compiled", "imported"]

# Tracing imports modules of its own, the largest among them.
_IMPORT = """if True:
    import json, sys
    import jax, workload.__main__, workload.train.launch, workload.train.loop
    jax.jit(lambda x: x + 1)(1.0)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    print(json.dumps(sorted({file for file in files if file and file.endswith(".py")})))
"""

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_STANDARD, _PACKAGES = f"python/lib/{_VERSION}", f"venv/lib/{_VERSION}/site-packages"


def compiled(python: Path, wheels: Iterable[Path]) -> Path:
    """Return a tar.gz of pycs for the interpreter in `python` and the packages in `wheels`.

    It unpacks beside a host's `python/` and `venv/`. A module that a host will have in
    another version than this machine is compiled from the host's source; one that it won't
    have is left out. Made once for the same sources and list of modules.
    """
    wheels = sorted(wheels)
    names = imported()
    facts = [sys.version, sha256_of(Path(__file__)), *names, *map(sha256_of, [python, *wheels])]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
    made = cache_dir("bytecode") / f"{key}.tar.gz"
    if not made.exists():
        part = made.with_name(f"{made.name}.{os.getpid()}.part")  # others may be at the same
        archive.write(part, _compiled(_sources(names, python, wheels)))
        part.replace(made)
    return made


def imported() -> list[str]:
    """Import the trainer in a Python like this one; return its modules' files below a host's environment."""
    environment = {"JAX_PLATFORMS": "cpu", "PATH": ""}
    command = [sys.executable, "-c", _IMPORT]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = done.stderr.strip().splitlines()[-1]
        raise PublishError(f"the trainer can't be imported here, so not on a host either: {why}")
    base = {"installed_base": sys.base_prefix, "base": sys.base_prefix}
    places = {
        Path(sysconfig.get_path("purelib")): _PACKAGES,
        Path(sysconfig.get_path("platlib")): _PACKAGES,
        Path(sysconfig.get_path("stdlib", vars=base)): _STANDARD,
    }
    names = set()
    for file in map(Path, json.loads(done.stdout)):
        for folder, place in places.items():
            if file.is_relative_to(folder):
                names.add(f"{place}/{file.relative_to(folder)}")
                break
    return sorted(names)


def _sources(names: list[str], python: Path, wheels: Iterable[Path]) -> dict[str, bytes]:
    """Name → source, of those names that the interpreter or a wheel has."""
    desired, sources = set(names), {}
    with tarfile.open(python) as tar:
        for member in tar:
            if member.name in desired and (file := tar.extractfile(member)):
                sources[member.name] = file.read()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as unpacked:
            for inner in unpacked.namelist():
                if (name := f"{_PACKAGES}/{inner}") in desired:
                    sources[name] = unpacked.read(inner)
    return sources


def _compiled(sources: Mapping[str, bytes]) -> dict[str, bytes]:
    """Name → pyc, by a process of its own: a pyc depends on what else the compiling process has loaded."""
    with tempfile.TemporaryDirectory(prefix="bytecode.") as folder:
        for name, content in sources.items():
            place = Path(folder, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        command = [
            sys.executable,
            "-I",
            "-m",
            "compileall",
            "-q",
            "--invalidation-mode",
            "unchecked-hash",
            ".",
        ]
        run(command, "compiling the host's modules", cwd=Path(folder))
        return {(made := cache_from_source(name)): Path(folder, made).read_bytes() for name in sources}

"""Modules that the trainer imports, compiled once here instead of on every host.

A new host has no bytecode, and its 1,500 modules take 5 CPU seconds to compile: at each
preemption, on every worker. The files are unchecked hash-based pycs (PEP 552): they hold
whatever the times of the sources are, and are right because a host checks them, like the
sources, against the bundle's manifest.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from importlib.util import cache_from_source
from pathlib import Path

import uv

from infra.publish import archive
from infra.publish.bundle import sha256_of
from infra.publish.cache import cache_dir, key_of, once
from infra.publish.errors import PublishError
from infra.publish.wheels import run, shipped
from infra.settings.sources import PROGRAM

__all__ = ["TRAINER", "compiled"]

TRAINER = """\
import jax, workload.__main__, workload.train.launch, workload.train.loop
jax.jit(lambda x: x + 1)(1.0)  # tracing imports modules of its own, the largest among them
"""
_LIST = """
import sys
files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
print(*(file for file in files if file.endswith(".py")), sep="\\n")
"""


def compiled(python: Path, wheels: Iterable[Path], program: str = TRAINER) -> Path:
    """Return a tar.gz of pycs of the modules that `program` imports on a host.

    It unpacks beside a host's `python/` and `venv/`. Made once for the same sources, by a host's environment
    that is installed here for a moment. The workload is that of the checkout and isn't compiled: its wheel
    changes with every commit.

    Args:
        python: the interpreter's archive.
        wheels: all that a host installs, but the workload.
        program: Python source.

    Raises:
        PublishError: the environment can't be installed, or the program fails in it.
    """
    wheels = sorted(wheels)
    packages = shipped() if program == TRAINER else []
    tree = [file for package in packages for file in sorted(package.rglob("*.py"))]
    facts = [sys.version, program, *map(sha256_of, [Path(__file__), python, *wheels, *tree])]

    def make(made: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="bytecode.") as host:
            archive.write(made, _compiled(Path(host).resolve(), python, wheels, program))

    return once(cache_dir("bytecode") / f"{key_of(*facts)}.tar.gz", make)


def _compiled(host: Path, python: Path, wheels: list[Path], program: str) -> dict[str, bytes]:
    """Return name → pyc, after a host's environment was installed into the folder `host`."""
    doing = "installing what hosts install"
    interpreter, own = host / "python/bin/python3", host / "venv/bin/python"
    run(["tar", "-xzf", str(python), "-C", str(host)], doing)
    run([uv.find_uv_bin(), "venv", "--quiet", "--python", str(interpreter), str(host / "venv")], doing)
    install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps"]
    run([*install, "--python", str(own), *map(str, wheels)], doing)
    try:
        printed = run([str(own), "-c", program + _LIST], "importing", cwd=PROGRAM, JAX_PLATFORMS="cpu")
    except PublishError as error:
        why = str(error).splitlines()[-1]
        raise PublishError(f"the trainer can't be imported here, so not on a host either: {why}") from None
    files = (Path(line) for line in printed.splitlines() if line.startswith("/"))
    names = sorted(str(file.relative_to(host)) for file in files if file.is_relative_to(host))
    # By one process of its own and in one order: a pyc depends on what else the compiling process has loaded.
    (host / "names").write_text("\n".join(names), "utf-8")
    compileall = [str(interpreter), "-I", "-m", "compileall", "-fq", "--invalidation-mode", "unchecked-hash"]
    run([*compileall, "-i", "names"], "compiling the host's modules", cwd=host)
    return {(made := cache_from_source(name)): (host / made).read_bytes() for name in names}

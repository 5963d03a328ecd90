"""The Python environments that Google's services run people's code with: made out here, where registries are.

Each comes from a lock beside this file, with hashes, and stays in the cache: `spark` has PySpark as in the
service's runtime 2.3, `functions` the functions framework.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import uv

from rehearsal.errors import WorldError

RUNTIMES = ("spark", "functions")
_LOCKS = Path(__file__).parent / "locks"


def ensure(name: str, cache: Path, report: Callable[[str], None] = lambda line: None) -> Path:
    """Return the interpreter of a runtime, made first if missing; WorldError if that fails."""
    lock = _LOCKS / f"{name}.txt"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(f"{version} {sys.base_prefix}\n{lock.read_text()}".encode()).hexdigest()[:16]
    folder = cache / f"runtime-{name}-{key}"
    python = folder / "bin" / "python"
    if (folder / ".complete").exists():
        return python
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"runtime-{name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            report(f"installing the runtime `{name}` (once)")
            shutil.rmtree(folder, ignore_errors=True)
            _uv("venv", "--quiet", "--python", sys.executable, str(folder))
            _uv("pip", "install", "--quiet", "--require-hashes", "--python", str(python), "-r", str(lock))
            (folder / ".complete").touch()
    return python


def _uv(*words: str) -> None:
    command: Sequence[str] = [uv.find_uv_bin(), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise WorldError(
            f"`{' '.join(command)}` failed:\n{done.stderr.strip()[-1500:]}",
            "it needs a package registry, as uv is configured for",
        )

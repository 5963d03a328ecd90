"""The Python environments that Google's services run people's code with: made out here, where registries are.

Each comes from a lock, with hashes, and stays in the cache: `spark` has PySpark as in the service's runtime
2.3, `functions` what the pipeline's function requires, the functions framework among it.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import uv

from rehearsal.world.checkout import run

_LOCKS = {
    "spark": Path(__file__).parent / "locks" / "spark.txt",
    "functions": Path(__file__).parents[2] / "infra/layers/pipeline/function/requirements.txt",
}


def ensure(name: str, cache: Path, report: Callable[[str], None] = lambda line: None) -> Path:
    """Return the interpreter of a runtime, made first if missing; WorldError if that fails."""
    lock = _LOCKS[name]
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
            fix, command = "it needs a package registry, as uv is configured for", uv.find_uv_bin()
            run([command, "venv", "--quiet", "--python", sys.executable, str(folder)], fix=fix)
            install = [command, "pip", "install", "--quiet", "--require-hashes", "--python", str(python)]
            run([*install, "-r", str(lock)], fix=fix)
            (folder / ".complete").touch()
    return python

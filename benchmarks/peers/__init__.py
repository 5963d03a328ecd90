"""The peers that a measurement stands beside, each in an environment of its own, outside the tree."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from workload.preflight.compiler import cache_folder

MAXTEXT = "0.2.4" if version("jax").startswith("0.10.") else "0.2.5"

# What is compared with, by name: pinned, so that a figure says what it is of.
PINS = {
    # Python 3.12, 2.9 GB. With the compiler that this environment has; 0.2.4 is the last one for JAX 0.10.
    "maxtext": f"maxtext[tpu]=={MAXTEXT} jax=={version('jax')} libtpu=={version('libtpu')}",
    "datatrove": "datatrove[processing]==0.10.1 tokenizers==0.23.3 orjson==3.13.0",  # 1 GB
    "dolma": "dolma==1.2.1",  # it allows tokenizers 0.19 alone; 0.6 GB
}
PYTHON312 = os.environ.get("PYTHON312", "python3.12")


def python(name: str) -> Path:
    """Return the interpreter of a peer's environment, installed on first use (2 min).

    Raises:
        SystemExit: there is no Python 3.12, or the packages can't be had.
    """
    folder = cache_folder().parent / f"peer-{re.sub(r'[^a-z0-9.]+', '-', PINS[name])}"
    result = folder / "bin" / "python"
    if (folder / ".complete").exists():
        return result
    print(f"installing {PINS[name]} into {folder}: about 2 min, 3 GB", file=sys.stderr, flush=True)
    steps = [
        [PYTHON312, "-m", "venv", "--clear", str(folder)],
        ["uv", "pip", "install", "--quiet", "--python", str(result), *PINS[name].split()],
    ]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise SystemExit(f"no {PYTHON312}\n    fix: PYTHON312=/path/to/python3.12 …") from None
        if done.returncode:
            raise SystemExit(f"{' '.join(step)}: {(done.stderr or done.stdout)[-1000:]}")
    (folder / ".complete").touch()
    return result


def maxtext_base(interpreter: Path) -> str:
    """Return the path of MaxText's base.yml."""
    where = "import maxtext.configs, pathlib; print(pathlib.Path(maxtext.configs.__path__[0]) / 'base.yml')"
    done = subprocess.run([interpreter, "-c", where], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]

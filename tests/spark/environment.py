"""The Python that has Spark: `tools/setup.sh spark` makes it."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.limits import HANG_S

ROOT = Path(__file__).parents[2]


@cache
def python() -> str:
    """The interpreter's path; makes the environment where it isn't there yet (1 min, 0.7 GB)."""
    made = subprocess.run(
        [ROOT / "tools/setup.sh", "spark"], capture_output=True, text=True, cwd=ROOT, timeout=HANG_S
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()[-1]


def run(
    arguments: Sequence[str | Path], environment: Mapping[str, str] | None = None, timeout_s: float = HANG_S
) -> subprocess.CompletedProcess[str]:
    """A program of the checkout in that Python."""
    path = os.pathsep.join(filter(None, [(environment or {}).get("PYTHONPATH", ""), str(ROOT)]))
    return subprocess.run(
        [python(), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=timeout_s,
        env={**os.environ, **(environment or {}), "PYTHONPATH": path},
    )

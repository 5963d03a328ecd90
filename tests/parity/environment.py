"""The Python that has torch and transformers: `tools/setup.sh parity` makes it."""

import subprocess
from pathlib import Path

from tests.limits import HANG_S

ROOT = Path(__file__).parents[2]


def python() -> str:
    """The interpreter's path; makes the environment where it isn't there yet (1 min, 5.3 GB)."""
    made = subprocess.run(
        [ROOT / "tools/setup.sh", "parity"], capture_output=True, text=True, cwd=ROOT, timeout=HANG_S
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()[-1]

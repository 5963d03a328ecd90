"""Python with torch and transformers, made by `tools/setup.sh parity`."""

import subprocess
from pathlib import Path

from tests.limits import HANG_S

ROOT = Path(__file__).parents[2]


def python() -> str:
    """Return the interpreter's path; make the environment where it is missing (1 min, 5.3 GB)."""
    made = subprocess.run(
        [ROOT / "tools/setup.sh", "parity"], capture_output=True, text=True, cwd=ROOT, timeout=HANG_S
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()[-1]

"""Command `tpu` of the wheel: run `tpu` of the checkout around the working directory.

That `tpu` drives the checkout's Pulumi program, in the environment made by `make setup`.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn


def entry() -> NoReturn:
    """Replace this process by the checkout's `tpu`; exit with 2 without a checkout."""
    current = Path.cwd()
    folders = (current, *current.parents)
    checkout = next((folder for folder in folders if (folder / "cli" / "__main__.py").is_file()), None)
    if checkout is None:
        _refuse(f"{current}: isn't in a checkout of the project", "cd into a clone; `workload` needs none")
    program = checkout / ".venv" / "bin" / "tpu"
    if not os.access(program, os.X_OK):
        _refuse(f"{checkout}: isn't set up", f"make -C {checkout} setup")
    os.execv(program, [str(program), *sys.argv[1:]])


def _refuse(what: str, fix: str) -> NoReturn:
    print(f"error: {what}\n    fix: {fix}", file=sys.stderr)
    sys.exit(2)

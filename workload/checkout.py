"""The command `tpu` as the wheel installs it: that of the checkout around the working directory.

It drives the Pulumi program that lies there, in the environment that `make setup` makes there.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn


def entry() -> NoReturn:
    """Becomes the checkout's own `tpu`; ends with 2 where there is none."""
    here = Path.cwd()
    found = (folder for folder in (here, *here.parents) if (folder / "cli" / "__main__.py").is_file())
    checkout = next(found, None)
    if checkout is None:
        _refuse(f"{here}: no checkout of the project around it", "cd into a clone; `workload` needs none")
    program = checkout / ".venv" / "bin" / "tpu"
    if not os.access(program, os.X_OK):
        _refuse(f"{checkout}: isn't set up", f"make -C {checkout} setup")
    os.execv(program, [str(program), *sys.argv[1:]])


def _refuse(what: str, fix: str) -> NoReturn:
    print(f"error: {what}\n    fix: {fix}", file=sys.stderr)
    sys.exit(2)

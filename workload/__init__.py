"""What the hosts of a slice install and run."""

import shlex
import shutil

__version__ = "0.1.0"


def command(*words: str) -> str:
    """A command of this package, to be copied: by its name where it is installed, else through Python."""
    program = "workload" if shutil.which("workload") else "python -m workload"
    return f"{program} {shlex.join(words)}"

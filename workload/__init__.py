"""Software that the hosts of a slice install and run."""

import shlex
import shutil

__version__ = "0.1.0"


def command(*words: str) -> str:
    """Format a `workload` command for messages: by name if installed, else through Python."""
    program = "workload" if shutil.which("workload") else "python -m workload"
    return f"{program} {shlex.join(words)}"

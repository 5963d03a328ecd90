"""Software that the hosts of a slice install and run."""

import shlex
import shutil
import sys

__version__ = "0.1.0"


def command(*words: str) -> str:
    """Format a `workload` command for messages: by name if installed, else through Python."""
    program = "workload" if shutil.which("workload") else "python -m workload"
    return f"{program} {shlex.join(words)}"


def print_progress(line: str) -> None:
    """Print progress on stderr, apart from output for programs."""
    print(f"  … {line}", file=sys.stderr, flush=True)

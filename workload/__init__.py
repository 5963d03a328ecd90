"""Software that the hosts of a slice install and run."""

import re
import shlex
import shutil
import sys

__version__ = "0.1.0"

NAME = "workload"
_typed = NAME


def command(*words: str) -> str:
    """Format a `workload` command for messages: by name if installed, else through Python."""
    program = "workload" if shutil.which("workload") else "python -m workload"
    return f"{program} {shlex.join(words)}"


def typed_as(words: str) -> None:
    """Set what the user types for `workload`: `tpu` for `tpu preflight`, `tpu workload` for all commands."""
    global _typed
    _typed = words


def as_typed(text: str) -> str:
    """Return a help text with the commands that the user types."""
    return re.sub(rf"(?<!tpu )\b{NAME}(?= [a-z]|$)", _typed, text)


def print_progress(line: str) -> None:
    """Print progress on stderr, apart from output for programs."""
    print(f"  … {line}", file=sys.stderr, flush=True)

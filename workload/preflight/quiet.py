"""Redirection of libtpu's messages, which warn about the missing TPU, into a log for errors."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# An abort of the compiler ends this process. A watcher process then prints the log, unless it reads the
# word that an orderly end writes.
_WATCHER = """
import pathlib, shutil, sys
log = pathlib.Path(sys.argv[1])
if not sys.stdin.read() and log.exists():
    last = log.read_text(errors="replace").splitlines()[-8:]
    print("workload: the compiler aborted; its last messages:", *last, sep="\\n    ", file=sys.stderr)
    shutil.rmtree(log.parent, ignore_errors=True)
"""


@dataclass
class Log:
    """Log of the compiler's standard error."""

    path: Path

    def hint(self) -> str:
        """Return a fix for a failure, with the last lines of the log."""
        lines = self.path.read_text(errors="replace").splitlines() if self.path.exists() else []
        shown = " / ".join(lines[-3:])
        return f"try another version of jax and libtpu; last messages of the compiler: {shown or 'none'}"


@contextmanager
def quiet(path: Path) -> Iterator[Log]:
    """Redirect standard error to a file, in a folder of its own."""
    sys.stderr.flush()
    saved = os.dup(2)
    watcher = subprocess.Popen(
        [sys.executable, "-S", "-c", _WATCHER, str(path)], stdin=subprocess.PIPE, stderr=saved
    )
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield Log(path)
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            watcher.communicate(b"over")

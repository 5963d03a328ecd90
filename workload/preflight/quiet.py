"""Keeps libtpu quiet, which warns below Python that there is no TPU; what it said is kept for errors."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# A compiler that aborts takes this process along. Another one then says what it said: it reads a word
# that only an orderly end writes.
_WATCHER = """
import pathlib, shutil, sys
log = pathlib.Path(sys.argv[1])
if not sys.stdin.read() and log.exists():
    last = log.read_text(errors="replace").splitlines()[-8:]
    print("workload: the compiler ended this process; it last said:", *last, sep="\\n    ", file=sys.stderr)
    shutil.rmtree(log.parent, ignore_errors=True)
"""


@dataclass
class Log:
    """What the compiler wrote to standard error while it was kept quiet."""

    path: Path

    def hint(self) -> str:
        """What to do about a failure, with its last words."""
        lines = self.path.read_text(errors="replace").splitlines() if self.path.exists() else []
        shown = " / ".join(lines[-3:])
        return f"another version of jax and libtpu may do; the compiler also said: {shown or 'nothing'}"


@contextmanager
def quiet(path: Path) -> Iterator[Log]:
    """Sends standard error into a file, in a folder of its own."""
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

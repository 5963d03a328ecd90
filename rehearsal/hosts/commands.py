"""Runs the system's programs; a failure names the command and has its output."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from rehearsal.hosts.errors import HostError


def run(command: Sequence[str | Path], *, log: Path | None = None, stdin: str | None = None) -> str:
    """Run to the end and return stdout; with `log`, both streams are appended there instead.

    Raises HostError with the command and the end of what it printed.
    """
    words = [str(word) for word in command]
    try:
        if log is None:
            done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
        else:
            with log.open("a") as sink:
                done = subprocess.run(words, stdout=sink, stderr=subprocess.STDOUT, text=True, check=False)
    except FileNotFoundError:
        raise HostError(f"{words[0]} is not installed", "make doctor names its package") from None
    if done.returncode != 0:
        output = done.stderr if log is None else log.read_text(errors="replace")
        raise HostError(f"`{' '.join(words)}` ended with status {done.returncode}: {output.strip()[-600:]}")
    return done.stdout or ""

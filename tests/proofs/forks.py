"""A process that forks children on request: lines of JSON go in and come out.

It answers `{"pid": N}`, waits for a line that says go, and answers again with the child's wait
status and what it printed.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from tests.limits import HANG_S

ROOT = Path(__file__).resolve().parents[2]


class Zygote:
    """A module of this package, with everything imported; `environment` replaces that of this process."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.proofs.{module}", *arguments],
            env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def send(self, message: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the zygote ended"
        return dict(json.loads(line))

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(HANG_S)


def serve(act: Callable[[Any], int]) -> None:
    """Fork a child for each line; it exits with the status that `act` returns."""
    for line in sys.stdin:
        read_go, write_go = os.pipe()
        with tempfile.TemporaryFile() as output:
            pid = os.fork()
            if pid == 0:
                os.read(read_go, 1)
                text = io.TextIOWrapper(output, write_through=True)
                with redirect_stdout(text), redirect_stderr(text):
                    status = act(json.loads(line))
                    text.flush()
                os._exit(status)
            print(json.dumps({"pid": pid}), flush=True)
            sys.stdin.readline()
            os.write(write_go, b"g")
            _, status = os.waitpid(pid, 0)
            output.seek(0)
            printed = output.read().decode(errors="replace")
        for pipe in (read_go, write_go):
            os.close(pipe)
        print(json.dumps({"status": status, "printed": printed}), flush=True)

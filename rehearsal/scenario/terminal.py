"""A terminal at which a scenario types a page's lines, each once the prompt is back."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from rehearsal.errors import ScenarioFailed

# Of Debian's bash: engineer@slurm-dev-login-0:~$
_PROMPT = re.compile(rb"[\w.-]+@[\w.-]+:[^\r\n]*[$#] $")
_STATUS = re.compile(rb"status=(\d+)\r?\n")
_SHOWN_BYTES = 2000


class Terminal:
    """A login in a terminal of its own, whose output goes to a file."""

    def __init__(self, login: str, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        """Log in, and wait for the prompt. ScenarioFailed if there is none within a minute."""
        # `script` brings the terminal; without line editing, whose sequences would stand in the log.
        command = ["script", "--quiet", "--return", "--command", f"stty columns 400; {login}", "/dev/null"]
        self._child = subprocess.Popen(
            command, cwd=folder, env={**environment, "TERM": "dumb"}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._log, self._path = log.open("wb"), log
        self._until(_PROMPT, "a prompt", 60.0)

    def type(self, line: str, timeout_s: float) -> None:
        """Type a line, and wait until it is done. ScenarioFailed unless its status is 0."""
        self._send(line)
        self._until(_PROMPT, f"the end of `{line}`", timeout_s)
        self._send("echo status=$?")
        printed = self._until(_PROMPT, "a prompt", 30.0)
        status = _STATUS.search(printed)
        if status is None or status[1] != b"0":
            raise ScenarioFailed(
                f"`{line}` ended with {status[1].decode() if status else 'no status'}{self._end()}"
            )

    def leave(self, line: str, timeout_s: float = 60.0) -> None:
        """Type the line that logs out. ScenarioFailed unless the login ends."""
        self._send(line)
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ScenarioFailed(f"`{line}` doesn't log out{self._end()}") from None

    def close(self) -> None:
        """End the login, whatever it does."""
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._log.close()

    def _send(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n".encode())
        self._child.stdin.flush()

    def _until(self, pattern: re.Pattern[bytes], what: str, timeout_s: float) -> bytes:
        """Return what is printed until a match at its end."""
        assert self._child.stdout is not None
        printed, end_s = b"", time.monotonic() + timeout_s
        while not pattern.search(printed):
            ready, _, _ = select.select([self._child.stdout], [], [], max(0.0, end_s - time.monotonic()))
            content = os.read(self._child.stdout.fileno(), 1 << 16) if ready else b""
            if not content:
                why = "the login ended" if ready else f"not within {timeout_s:g} s"
                raise ScenarioFailed(f"{what}: {why}{self._end()}")
            self._log.write(content)
            self._log.flush()
            printed += content
        return printed

    def _end(self) -> str:
        shown = self._path.read_bytes()[-_SHOWN_BYTES:].decode(errors="replace")
        return f":\n{shown}\n  (all of it: {self._path})"

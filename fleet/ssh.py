"""A command on one worker, by ssh: what is typed, what comes back, and what an ending means.

How a worker is reached is the setting `fleet:ssh`. Who carries the command there may fail with a status of
its own: ssh with 255, gcloud with 1, like many commands. So the host says itself when the command begins and
with what it ended; where it said neither, nobody knows.
"""

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Lock

from fleet.errors import FleetError
from infra.settings.schema import LOGIN
from infra.slices.nodes import Node

# $0 is the mark, $1 the command, $2 seconds until the host ends it. An empty line keeps the last word apart
# from output that ends without one.
_SCRIPT = (
    'echo "$0 begun"; timeout -k 10 "$2" bash -c "$1"; s=$?; printf "\\n%s ended %s\\n" "$0" "$s"; exit "$s"'
)
_TIMED_OUT = (124, 137)  # of timeout(1): ended, or killed 10 s later
_CONNECT_S = 90.0  # beside the command's own time
_TAIL_BYTES = 65_536


@dataclass(frozen=True)
class Worker:
    """A machine of a slice."""

    node: Node
    number: int

    @property
    def name(self) -> str:
        """Such as tpu-us-east5-b-0-w0."""
        return f"{self.node.name}-w{self.number}"


class Ending(StrEnum):
    """Ending of a command on a worker."""

    OK = "ok"
    FAILED = "failed"  # the command's own failure
    UNREACHED = "unreached"  # no sign that it began
    LOST = "lost"  # it began; how it ended, or whether, nobody knows


@dataclass(frozen=True)
class Report:
    """Report of a command on a worker.

    Attributes:
        ending: how it went.
        status: of the command; None where the host didn't say.
        why: in words, where it isn't fine.
        took_s: from the first try to connect.
        ended_s: when, on a clock that only tells what was before what.
        log: all that was said.
    """

    worker: Worker
    ending: Ending
    status: int | None
    why: str
    took_s: float
    ended_s: float
    log: Path

    def last_lines(self, count: int) -> list[str]:
        """Return the end of what was said, without the marks."""
        with self.log.open("rb") as output:
            output.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            lines = output.read().decode(errors="replace").splitlines()
        stored = [line.rstrip() for line in lines if line.strip() and not line.startswith(_MARK)]
        return stored[-count:]


_MARK = "fleet exec "


class Ssh:
    """Runs commands on workers, and can end all that run."""

    def __init__(self, template: str, project: str, run: str):
        """Commands by `template`, a valid `fleet:ssh`; `run` tells this run's marks from all others.

        Raises:
            FleetError: the program isn't on this machine.
        """
        self._words, self._project, self._mark = shlex.split(template), project, f"{_MARK}{run}"
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._stopped = Lock(), False
        if shutil.which(self._words[0]) is None:
            fix = "install it, or say in fleet:ssh how workers are reached (docs/fleet.md)"
            raise FleetError(f"fleet:ssh: {self._words[0]} isn't on PATH\n    fix: {fix}")
        self._login = os_login_name() if "{login}" in template else ""

    def line(self, worker: Worker, command: str, timeout_s: int) -> list[str]:
        """Return the local command line: no local shell reads it, the host's reads one quoted word."""
        join = shlex.join(["bash", "-c", _SCRIPT, self._mark, command, str(timeout_s)])
        return self._filled(self._words, worker, join)

    def interactive(self, worker: Worker, command: Sequence[str] = ()) -> list[str]:
        """Return a login with this terminal, or with `command` that command and its own output."""
        words = [word for word in self._words if command or "{command}" not in word]
        return self._filled(words, worker, shlex.join(command))

    def _filled(self, words: Sequence[str], worker: Worker, command: str) -> list[str]:
        place = {"project": self._project, "zone": worker.node.zone, "node": worker.node.name}
        place |= {"login": self._login, "command": command}
        return [word.format(**place, worker=worker.number) for word in words]

    def run(self, worker: Worker, command: str, timeout_s: int, log: Path) -> Report:
        """To its end, or until the host has had `timeout_s` and said nothing.

        Raises:
            FleetError: this machine can't start it.
        """
        begun_s = time.monotonic()
        code: int | None = None
        with log.open("wb") as output:
            with self._lock:
                if self._stopped:
                    return Report(worker, Ending.UNREACHED, None, "not begun", 0.0, begun_s, log)
                try:
                    child = subprocess.Popen(
                        self.line(worker, command, timeout_s), stdin=subprocess.DEVNULL, stdout=output,
                        stderr=subprocess.STDOUT, start_new_session=True,
                    )  # fmt: skip
                except OSError as error:  # a command may be longer than the system passes on
                    fix = "a shorter command, or fleet:ssh (docs/fleet.md)"
                    why = f"{self._words[0]} can't be started: {error.strerror}"
                    raise FleetError(f"{why}\n    fix: {fix}") from None
                self._running.add(child)
            try:
                code = child.wait(timeout_s + _CONNECT_S)
            except subprocess.TimeoutExpired:
                _end(child)
            finally:
                with self._lock:
                    self._running.discard(child)
        ended_s = time.monotonic()
        took_s = ended_s - begun_s
        ending, status, why = self._meaning(log, code, took_s, timeout_s)
        return Report(worker, ending, status, why, took_s, ended_s, log)

    def stop(self) -> int:
        """End every connection, and begins none any more; how many there were. Hosts may continue."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                _end(child)
            return len(self._running)

    def _meaning(
        self, log: Path, code: int | None, took_s: float, timeout_s: int
    ) -> tuple[Ending, int | None, str]:
        begun, status = self._marks(log)
        if status is not None:
            # Sooner it is the command's own, or of one that the kernel killed to free memory.
            late = status in _TIMED_OUT and took_s >= timeout_s
            why = f"status {status}{f' (not done within {timeout_s} s)' if late else ''}"
            return (Ending.FAILED, status, why) if status else (Ending.OK, 0, "")
        if code is None:
            carrier = f"no word within {timeout_s + _CONNECT_S:.0f} s"
        else:
            carrier = f"{self._words[0]} ended with {code}"
        if begun:
            return Ending.LOST, None, f"{carrier}; it began there, and may continue"
        return Ending.UNREACHED, None, f"{carrier}, without a sign that it began"

    def _marks(self, log: Path) -> tuple[bool, int | None]:
        """Return whether the host reported a start, and the exit status that it reported."""
        begun, status, mark = False, None, self._mark.encode()
        with log.open("rb") as output:
            for line in output:
                if line.startswith(mark):
                    word, _, number = line[len(mark) :].strip().partition(b" ")
                    begun = True
                    status = int(number) if word == b"ended" and number.isdigit() else status
        return begun, status


def os_login_name() -> str:
    """Return the caller's user name on hosts.

    Raises:
        FleetError: gcloud doesn't say.
    """
    words = shlex.split(LOGIN)
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_CONNECT_S)
        name, why = done.stdout.strip(), (done.stderr.strip().splitlines() or ["no name in the profile"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        name, why = "", str(error)
    if not name:
        fix = "gcloud auth login, and once: gcloud compute os-login ssh-keys add (docs/settings.md)"
        raise FleetError(f"{shlex.join(words)}: {why}\n    fix: {fix}")
    return name


def workers(nodes: Sequence[Node]) -> list[Worker]:
    """Every machine of some slices."""
    return [Worker(node, number) for node in nodes for number in range(node.kind.hosts)]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kills a child and all that it started."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

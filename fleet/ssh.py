"""Run a command on a worker by SSH, and interpret its end.

The setting `fleet:ssh` is the command line that reaches a worker. It may fail with a status of its own (ssh
with 255, gcloud with 1), as many commands do. So the host itself prints a mark when the command begins, and
one with its status when it ends; without marks the outcome is unknown.
"""

import os
import re
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

# $0 is the mark, $1 the command, $2 its time limit in seconds. An empty line separates the last mark from
# output that ends without a newline.
_SCRIPT = (
    'echo "$0 begun"; timeout -k 10 "$2" bash -c "$1"; s=$?; printf "\\n%s ended %s\\n" "$0" "$s"; exit "$s"'
)
_TIMED_OUT = (124, 137)  # of timeout(1): ended, or killed 10 s later
_CONNECT_S = 90.0  # beside the command's own time
_TAIL_BYTES = 65_536
_FORWARDING = ("ssh", "gcloud")
"""Programs that take ssh's option -L, gcloud as a flag of ssh."""


@dataclass(frozen=True)
class Worker:
    """A machine of a slice."""

    node: Node
    number: int

    @property
    def name(self) -> str:
        """Such as tpu-us-east5-b-0-w0."""
        return f"{self.node.name}-w{self.number}"


@dataclass(frozen=True)
class Forward:
    """A port of this machine that leads to a port of a worker."""

    local: int
    remote: int


class Ending(StrEnum):
    """Ending of a command on a worker."""

    OK = "ok"
    FAILED = "failed"  # the command's own failure
    UNREACHED = "unreached"  # no sign that it began
    LOST = "lost"  # it began; its end is unknown


@dataclass(frozen=True)
class Report:
    """Report of a command on a worker.

    Attributes:
        ending: of the command.
        status: exit status; None: unknown.
        why: reason of a failure.
        took_s: seconds from the first attempt to connect.
        ended_s: time of the end, on a monotonic clock.
        log: file with the output.
    """

    worker: Worker
    ending: Ending
    status: int | None
    why: str
    took_s: float
    ended_s: float
    log: Path

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of the output, without marks."""
        with self.log.open("rb") as output:
            output.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            lines = output.read().decode(errors="replace").splitlines()
        stored = [line.rstrip() for line in lines if line.strip() and not line.startswith(_MARK)]
        return stored[-count:]


_MARK = "fleet exec "


class Ssh:
    """Run commands on workers, and end those that run."""

    def __init__(self, template: str, project: str, run: str):
        """Prepare commands by `template`, a valid `fleet:ssh`; `run` identifies the marks of this run.

        Raises:
            FleetError: the program isn't on this machine.
        """
        self._words, self._project, self._mark = shlex.split(template), project, f"{_MARK}{run}"
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._stopped = Lock(), False
        if shutil.which(self._words[0]) is None:
            fix = "install it, or say in fleet:ssh how workers are reached (docs/reference/fleet.md)"
            raise FleetError(f"fleet:ssh: {self._words[0]} isn't on PATH\n    fix: {fix}")
        self._login = os_login_name() if "{login}" in template else ""

    def line(self, worker: Worker, command: str, timeout_s: int) -> list[str]:
        """Return the local command line: no local shell reads it, the host's reads one quoted word."""
        join = shlex.join(["bash", "-c", _SCRIPT, self._mark, command, str(timeout_s)])
        return self._filled(self._words, worker, join)

    def interactive(self, worker: Worker, command: str = "", forwards: Sequence[Forward] = ()) -> list[str]:
        """Return a login with this terminal, or with `command` that command and its own output.

        Args:
            worker: to log in to.
            command: line for the host's shell.
            forwards: ports of this machine that lead to it; without a command nothing is run there.

        Raises:
            FleetError: the program of the template forwards no ports.
        """
        words = [word for word in self._words if command or "{command}" not in word]
        flags = [f"-L{port.local}:localhost:{port.remote}" for port in forwards]
        if flags:
            flags += ["-oExitOnForwardFailure=yes", *([] if command else ["-N"])]
        program = Path(words[0]).name
        if flags and program not in _FORWARDING:
            fix = f"fleet:ssh with {' or '.join(_FORWARDING)} as its program"
            raise FleetError(
                f"--forward: {program}, the program of fleet:ssh, isn't known to forward\n    fix: {fix}"
            )
        if program == "gcloud":
            words += [f"--ssh-flag={flag}" for flag in flags]
        else:
            words[1:1] = flags
        return self._filled(words, worker, command)

    def _filled(self, words: Sequence[str], worker: Worker, command: str) -> list[str]:
        fields = {"project": self._project, "zone": worker.node.zone, "node": worker.node.name}
        fields |= {"login": self._login, "command": command, "worker": str(worker.number)}
        return [word.format(**fields) for word in words]

    def run(self, worker: Worker, command: str, timeout_s: int, log: Path) -> Report:
        """Run a command to its end, or until `timeout_s` and the time to connect have passed without one.

        Raises:
            FleetError: this machine can't start the SSH program.
        """
        begun_s = time.monotonic()
        client_status: int | None = None
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
                    fix = "a shorter command, or fleet:ssh (docs/reference/fleet.md)"
                    why = f"{self._words[0]} can't be started: {error.strerror}"
                    raise FleetError(f"{why}\n    fix: {fix}") from None
                self._running.add(child)
            try:
                client_status = child.wait(timeout_s + _CONNECT_S)
            except subprocess.TimeoutExpired:
                _end(child)
            finally:
                with self._lock:
                    self._running.discard(child)
        ended_s = time.monotonic()
        took_s = ended_s - begun_s
        ending, status, why = self._meaning(log, client_status, took_s, timeout_s)
        return Report(worker, ending, status, why, took_s, ended_s, log)

    def stop(self) -> int:
        """End every connection and begin no more; return their number. Commands on hosts may continue."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                _end(child)
            return len(self._running)

    def _meaning(
        self, log: Path, client_status: int | None, took_s: float, timeout_s: int
    ) -> tuple[Ending, int | None, str]:
        begun, status = self._marks(log)
        if status is not None:
            # Before the limit such a status is the command's own, as after a kill for lack of memory.
            late = status in _TIMED_OUT and took_s >= timeout_s
            why = f"status {status}{f' (not done within {timeout_s} s)' if late else ''}"
            return (Ending.FAILED, status, why) if status else (Ending.OK, 0, "")
        if client_status is None:
            carrier = f"no answer within {timeout_s + _CONNECT_S:.0f} s"
        else:
            carrier = f"{self._words[0]} ended with {client_status}"
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
                    status = int(number) if word == b"ended" and re.fullmatch(rb"\d{1,3}", number) else status
        return begun, status


def os_login_name() -> str:
    """Return the caller's user name on hosts.

    Raises:
        FleetError: gcloud doesn't know it.
    """
    words = shlex.split(LOGIN)
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_CONNECT_S)
        name, why = done.stdout.strip(), (done.stderr.strip().splitlines() or ["no name in the profile"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        name, why = "", str(error)
    if not name:
        fix = "gcloud auth login, and once: gcloud compute os-login ssh-keys add (docs/reference/access.md)"
        raise FleetError(f"{shlex.join(words)}: {why}\n    fix: {fix}")
    return name


def one_line(words: Sequence[str]) -> str:
    """Return the line for a host's shell: several words as they are, a single one as a line of its own.

    Raises:
        FleetError: there are no words.
    """
    if not words:
        raise FleetError("no command: it stands behind --\n    fix: tpu fleet exec dev -- hostname")
    return words[0] if len(words) == 1 else shlex.join(words)


def workers(nodes: Sequence[Node]) -> list[Worker]:
    """Return every worker of some slices."""
    return [Worker(node, number) for node in nodes for number in range(node.kind.hosts)]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child and its descendants."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

"""The heartbeat of a command that reports no progress itself, derived from its systemd unit.

It is the same object that the trainer and the extractor write (`heartbeat.py`): running, done or failed, of a
failed one with its last line of output. The command is none the wiser.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from workload.host.errors import HostError
from workload.host.heartbeat import Heartbeat
from workload.host.unit import STOPPED

__all__ = ["Heartbeat", "Service", "last_line", "look"]

JOB = "tpu-job.service"
PAUSE_S = 2.0

_EXITED = 1  # CLD_EXITED; else it was killed
_PROPERTIES = (
    *("ActiveState", "SubState", "Result", "NRestarts", "InvocationID"),
    *("ExecMainCode", "ExecMainStatus", "ExecMainStartTimestampMonotonic"),
)


@dataclass(frozen=True)
class Service:
    """What systemd says of the job (systemctl(1), "show")."""

    active: str
    sub: str
    result: str
    restarts: int
    invocation: str
    code: int
    status: int
    ran: bool
    stopped: bool  # by somebody else than itself

    @classmethod
    def parse(cls, shown: str, stopped: str) -> Self:
        """From `KEY=value` lines, and the invocation that was stopped last."""
        value = {key: text for key, _, text in (line.partition("=") for line in shown.splitlines())}
        return cls(
            active=value["ActiveState"],
            sub=value["SubState"],
            result=value["Result"],
            restarts=int(value["NRestarts"] or 0),
            invocation=value["InvocationID"],
            code=int(value["ExecMainCode"] or 0),
            status=int(value["ExecMainStatus"] or 0),
            ran=value["ExecMainStartTimestampMonotonic"] not in ("", "0"),
            stopped=bool(stopped) and stopped == value["InvocationID"],
        )

    @property
    def state(self) -> Literal["running", "done", "failed", "stopped"] | None:
        """None while it is on its way from one to another, and before its first start (the barrier)."""
        if self.active == "active":
            return "running"
        if not self.ran or self.active == "deactivating":
            return None
        if self.active == "failed" or self.sub.startswith("auto-restart"):
            return "failed"
        if self.active == "inactive":
            return "done" if (self.code, self.status, self.stopped) == (_EXITED, 0, False) else "stopped"
        return None

    @property
    def final(self) -> bool:
        """Whether it failed and isn't started again: exit status 2, or too often."""
        return self.active == "failed"

    @property
    def how(self) -> str:
        """How it ended."""
        if self.result == "start-limit-hit":
            return "failed too often, isn't started again"
        return f"exit status {self.status}" if self.code == _EXITED else f"killed by signal {self.status}"


class JobHeartbeat:
    """Says a state once, and again as long as the job runs; a new start of the job begins a new one."""

    def __init__(self, environment: Mapping[str, str], line: Callable[[], str]) -> None:
        self._environment, self._line = environment, line
        self._heartbeat: Heartbeat | None = None
        self._reported: tuple[str, str] | None = None

    def take(self, service: Service) -> None:
        """Says what is new of the job; returns once the end of one is written, or can't be for 40 s."""
        state = service.state
        if state is None or (state, service.invocation) == self._reported:
            return
        self._reported = state, service.invocation
        if state in ("running", "stopped") and self._heartbeat:
            self._heartbeat.end(None)
            self._heartbeat = None
        if state == "stopped":
            return
        if self._heartbeat is None:
            self._heartbeat = Heartbeat.of_host(self._environment).__enter__()
        if state == "failed":
            line = self._line()
            if service.final:
                self._heartbeat.report(final=1)
            self._heartbeat.end("failed", HostError(f"{service.how}: {line}" if line else service.how))
        elif state == "done":
            self._heartbeat.end("done")
        if state != "running":
            self._heartbeat = None

    def end(self) -> None:
        """Nothing more is said: this host goes away, or this program is started again."""
        if self._heartbeat:
            self._heartbeat.end(None)

    def follow(self, look: Callable[[], Service], stopped: threading.Event, pause_s: float = PAUSE_S) -> None:
        """Looks every `pause_s` seconds, until `stopped`."""
        failing = ""
        while not stopped.is_set():
            try:
                self.take(look())
            except (subprocess.SubprocessError, OSError) as error:  # systemd is busy, or goes away
                if str(error) != failing:
                    print(f"{JOB} can't be looked at, will retry: {error}", flush=True)
                failing = str(error)
            stopped.wait(pause_s)
        self.end()


def look() -> Service:
    """What systemd says now."""
    shown = _output("systemctl", "show", f"--property={','.join(_PROPERTIES)}", JOB)
    stopped = Path(STOPPED).read_text().strip() if Path(STOPPED).exists() else ""
    return Service.parse(shown, stopped)


def last_line() -> str:
    """The last line of what the job printed that isn't blank."""
    with suppress(subprocess.SubprocessError, OSError):
        output = _output(
            "journalctl", "--quiet", f"_SYSTEMD_UNIT={JOB}", "--lines=20", "--output=cat", "--all"
        )
        return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
    return ""


def _output(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=20, check=True
    ).stdout

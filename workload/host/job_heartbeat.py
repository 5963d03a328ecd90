"""Heartbeat of a command that reports no progress itself, derived from its systemd unit.

It is the object that the trainer and the extractor write (`heartbeat.py`): running, done or failed, a
failure with its last line of output. The command needs no change.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from workload.host.errors import HostError
from workload.host.heartbeat import Heartbeat
from workload.host.unit import STOPPED

_LOG = logging.getLogger(__name__)
JOB = "tpu-job.service"
PAUSE_S = 2.0

_EXITED = 1  # CLD_EXITED; other codes: killed
_PROPERTIES = (
    *("ActiveState", "SubState", "Result", "NRestarts", "InvocationID"),
    *("ExecMainCode", "ExecMainStatus", "ExecMainStartTimestampMonotonic"),
)


@dataclass(frozen=True)
class Service:
    """State of the job's unit (systemctl(1), "show")."""

    active: str
    sub: str
    result: str
    restarts: int
    invocation: str
    code: int
    status: int
    began_us: int  # of its last start, on the monotonic clock; 0: it hasn't begun
    stopped: bool  # by systemctl or a shutdown

    @classmethod
    def parse(cls, shown: str, stopped: str) -> Self:
        """Parse `KEY=value` lines; `stopped` is the invocation that was stopped last."""
        value = {key: text for key, _, text in (line.partition("=") for line in shown.splitlines())}
        return cls(
            active=value["ActiveState"],
            sub=value["SubState"],
            result=value["Result"],
            restarts=int(value["NRestarts"] or 0),
            invocation=value["InvocationID"],
            code=int(value["ExecMainCode"] or 0),
            status=int(value["ExecMainStatus"] or 0),
            began_us=int(value["ExecMainStartTimestampMonotonic"] or 0),
            stopped=bool(stopped) and stopped == value["InvocationID"],
        )

    @property
    def state(self) -> Literal["running", "done", "failed", "stopped"] | None:
        """State to report; None during a transition, and before the first start (the barrier)."""
        if self.active == "active":
            return "running"
        if not self.began_us or self.active == "deactivating":
            return None
        if self.active == "failed" or self.sub.startswith("auto-restart"):
            return "failed"
        if self.active == "inactive":
            return "done" if (self.code, self.status, self.stopped) == (_EXITED, 0, False) else "stopped"
        return None

    @property
    def began_s(self) -> float:
        """Time of its last start by this host's clock; two calls differ by what that was set."""
        return time.time() - (time.monotonic() - self.began_us / 1e6)

    @property
    def final(self) -> bool:
        """True if it failed and isn't restarted: exit status 2, or too many starts."""
        return self.active == "failed"

    @property
    def cause(self) -> str:
        """Cause of its end."""
        if self.result == "start-limit-hit":
            return "failed too often, isn't started again"
        return f"exit status {self.status}" if self.code == _EXITED else f"killed by signal {self.status}"


class JobHeartbeat:
    """Heartbeats of the job's unit: each state is reported once and repeated while the job runs."""

    def __init__(self, environment: Mapping[str, str], line: Callable[[], str]) -> None:
        self._environment, self._line = environment, line
        self._heartbeat: Heartbeat | None = None
        self._reported: tuple[str, str] | None = None

    def observe(self, service: Service) -> None:
        """Report a change of state; on return the end of a job is written, or given up: `Heartbeat.end`."""
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
            self._heartbeat = Heartbeat.of_host(self._environment, began_s=service.began_s).__enter__()
        if state == "failed":
            line = self._line()
            if service.final:
                self._heartbeat.report(final=1)
            self._heartbeat.end("failed", HostError(f"{service.cause}: {line}" if line else service.cause))
        elif state == "done":
            self._heartbeat.end("done")
        if state != "running":
            self._heartbeat = None

    def end(self) -> None:
        """Stop reporting: the host shuts down, or this program is restarted."""
        if self._heartbeat:
            self._heartbeat.end(None)

    def follow(self, query: Callable[[], Service], stop: threading.Event, pause_s: float = PAUSE_S) -> None:
        """Observe the unit every `pause_s` seconds until `stop`."""
        failing = ""
        while not stop.is_set():
            try:
                self.observe(query())
            except (subprocess.SubprocessError, OSError) as error:  # systemd is busy, or shuts down
                if str(error) != failing:
                    _LOG.warning("%s can't be queried, will retry: %s", JOB, error)
                failing = str(error)
            stop.wait(pause_s)
        self.end()


def query() -> Service:
    """Query systemd for the unit's state."""
    shown = _output("systemctl", "show", f"--property={','.join(_PROPERTIES)}", JOB)
    stopped = Path(STOPPED).read_text().strip() if Path(STOPPED).exists() else ""
    return Service.parse(shown, stopped)


def last_line() -> str:
    """Return the last line of the job's output that isn't blank."""
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

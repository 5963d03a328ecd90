"""The controller's state store and leader lease: one object in the controller's bucket.

A write replaces only the generation that was read. The lease is renewed every 60 s and expires after 180 s: a
controller doesn't start while another holds it, and stops once another has written.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from fleet.controller_state import ControllerState, parse
from fleet.errors import FleetError
from fleet.google import Google
from infra.google.client import RequestError
from infra.google.failures import Kind

_INSTANCE = uuid.uuid4().hex[:8]
RENEW_S, EXPIRES_S = 60.0, 180.0
_BRIEF_S = 40.0  # a sweep keeps slices for 20 s, and leaves


def object_of(stack: str) -> str:
    """Return the object with the state of a stack's controller."""
    return f"{stack}/controller.json"


class UnreachableError(FleetError):
    """The bucket didn't answer: nothing can be recorded, so nothing may be done."""


class LeaseHeldError(FleetError):
    """Another controller acts, or has acted meanwhile."""


class _StaleError(FleetError):
    """The bucket holds another generation than the one to replace."""


class BucketStore:
    """The state of one controller, in the bucket."""

    def __init__(
        self, google: Google, stack: str, now: Callable[[], float] = time.time, *, brief: bool = False
    ):
        """Create a store; `brief`: the lease is held for seconds at a time, and others wait for its end."""
        self._brief = brief or _is_function()
        self._google, self._object, self._now = google, object_of(stack), now
        self._id, self._host = uuid.uuid4().hex, host()
        self._generation, self._written_s = 0, 0.0
        self._where = f"gs://{google.controller_bucket}/{object_of(stack)}"

    def read(self) -> ControllerState:
        """Return the stored state; wait for one that holds the lease for seconds of each sweep.

        Raises FleetError if another controller holds the lease.
        """
        until_s = time.monotonic() + _BRIEF_S
        while True:
            state, leader, self._generation = self._stored()
            if leader.get("id") == self._id or not self._alive(leader):
                return state
            if leader.get("brief") is not True or self._brief or time.monotonic() > until_s:
                raise self._other(leader)
            time.sleep(1.0)

    def peek(self) -> ControllerState:
        """Return the stored state as far as it can be read, for observers."""
        try:
            return self._stored()[0]
        except FleetError:
            return ControllerState()

    def leader(self) -> tuple[ControllerState, str]:
        """Return the state, and a description of the acting controller; empty if none acts.

        Raises:
            UnreachableError: the bucket didn't answer.
            FleetError: the object holds no state of a controller.
        """
        state, leader, _ = self._stored()
        if not self._alive(leader):
            return state, ""
        ago_s = max(0.0, self._now() - float(leader["at_s"]))
        return state, f"one on {leader.get('host') or 'a host unknown'}, its lease renewed {ago_s:.0f} s ago"

    def write(self, state: ControllerState, renew: bool = True) -> None:
        """Write the state and renew the lease.

        Args:
            state: the whole state.
            renew: False to release the lease.

        Raises:
            UnreachableError: the bucket didn't answer.
            FleetError: another controller has written since.
        """
        leader = {
            "id": self._id, "host": self._host, "process": os.getpid(), "at_s": self._now() if renew else 0.0,
            **({"brief": True} if self._brief else {}),
        }  # fmt: skip
        text = json.dumps(state.to_json() | {"leader": leader})
        try:
            self._write(text)
        except _StaleError:
            # Our own write, if only the answer to an earlier one was lost.
            stored, other, generation = self._stored()
            if other.get("id") != self._id:
                raise self._other(other) from None
            self._generation = generation
            if stored.to_json() != state.to_json() or other != leader:
                self._write_again(text)
        self._written_s = self._now()

    def _write_again(self, text: str) -> None:
        try:
            self._write(text)
        except _StaleError as error:
            raise UnreachableError(f"{self._where}: {error}") from None

    def _write(self, text: str) -> None:
        try:
            self._generation = self._google.write(self._object, text, self._generation)
        except RequestError as error:
            kind = _StaleError if error.failure.kind is Kind.INVALID else UnreachableError
            raise kind(f"{self._where}: {error}") from None

    def renew(self, state: ControllerState) -> None:
        """Write the state if the last write is a minute old."""
        if self._now() - self._written_s > RENEW_S:
            self.write(state)

    def _stored(self) -> tuple[ControllerState, Mapping[str, Any], int]:
        """Return the state, its leader and its generation (0: there is none). Raises FleetError."""
        try:
            result = self._google.read(self._object)
        except RequestError as error:
            raise UnreachableError(f"{self._where}: {error}") from None
        if result is None:
            return ControllerState(), {}, 0
        state, document = parse(result[0], self._where)
        return state, document.get("leader") or {}, result[1]

    def _other(self, leader: Mapping[str, Any]) -> LeaseHeldError:
        ago_s = self._now() - float(leader.get("at_s") or 0)
        host, process = leader.get("host") or "a host unknown", leader.get("process") or "unknown"
        acts = f"{self._where}: another controller acts, on {host}, process {process}"
        if not _plausible(ago_s):
            dated = f"{abs(ago_s) / 60:.0f} min {'ago' if ago_s > 0 else 'ahead'}"
            fix = f"set the clock of this machine or of {host} right; if that controller is gone, wait"
            clock = f"its lease is dated {dated}, and Google's clock says otherwise"
            return LeaseHeldError(f"{acts}; {clock}\n    fix: {fix} {EXPIRES_S:.0f} s")
        ago_s = max(0.0, ago_s)
        return LeaseHeldError(
            f"{acts}, its lease renewed {ago_s:.0f} s ago\n    fix: use `tpu status --watch` beside it, or "
            f"stop it with Ctrl+C; if it is gone, wait {max(0.0, EXPIRES_S - ago_s):.0f} s"
        )

    def _alive(self, leader: Mapping[str, Any]) -> bool:
        """Return whether a controller is alive; on this host also by its process.

        A lease that this clock would call expired, or not yet written, is judged by Google's clock alone.
        Should hosts share a name, the controller whose state was overwritten stops by itself.
        """
        at_s = float(leader.get("at_s") or 0)
        on_this_host = leader.get("host") == host() and bool(leader.get("process"))
        if not at_s or (on_this_host and not runs(int(leader["process"]))):
            return False
        ago_s = self._now() - at_s
        if _plausible(ago_s):
            return True
        try:
            written_s = self._google.age_s(self._object)
        except RequestError as error:
            raise UnreachableError(f"{self._where}: {error}") from None
        return (ago_s if written_s is None else written_s) < EXPIRES_S


def _plausible(ago_s: float) -> bool:
    """Return whether a live controller may have renewed its lease so long ago."""
    return -RENEW_S <= ago_s < EXPIRES_S


def host() -> str:
    """Return this machine's name; all instances of a function have the same at Google."""
    return f"{os.environ['K_REVISION']} {_INSTANCE}" if _is_function() else socket.gethostname()


def _is_function() -> bool:
    """Return whether this process is an instance of a function at Google."""
    return "K_REVISION" in os.environ


def runs(process: int) -> bool:
    """Return whether a process exists on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

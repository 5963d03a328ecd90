"""The controller's state store and leader lease: one object in the controller's bucket.

It is written only over the generation that was read. The lease is renewed every 60 s and expires after 180 s:
a controller that finds another's lease doesn't begin, one that finds another's writing in its place stops.
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

RENEW_S, EXPIRES_S = 60.0, 180.0


def object_of(stack: str) -> str:
    """Return the object with the state of a stack's controller."""
    return f"{stack}/controller.json"


class UnreachableError(FleetError):
    """The bucket didn't answer: nothing is remembered, so nothing may be done."""


class LeaseHeldError(FleetError):
    """Another controller acts, or has acted meanwhile."""


class _StaleError(FleetError):
    """The bucket holds another generation than the one that was to be replaced."""


class BucketStore:
    """The state of one controller, in the bucket."""

    def __init__(self, google: Google, stack: str, now: Callable[[], float] = time.time):
        self._google, self._object, self._now = google, object_of(stack), now
        self._id, self._host = uuid.uuid4().hex, socket.gethostname()
        self._generation, self._written_s = 0, 0.0
        self._where = f"gs://{google.controller_bucket}/{object_of(stack)}"

    def read(self) -> ControllerState:
        """Return the stored state. Raises FleetError if another controller holds the lease."""
        result = self._stored()
        if result is None:
            return ControllerState()
        state, stored, self._generation = result
        self._refuse_other(stored)
        return state

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
        }  # fmt: skip
        text = json.dumps(state.to_json() | {"leader": leader})
        try:
            self._write(text)
        except _StaleError:
            result = self._stored()  # our own, if only the answer to an earlier write was lost
            if result is None or (result[1].get("leader") or {}).get("id") != self._id:
                raise self._other((result[1] if result else {}).get("leader") or {}) from None
            self._generation = result[2]
            if result[1] != json.loads(text):
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
        """Write where the last sign is a minute old."""
        if self._now() - self._written_s > RENEW_S:
            self.write(state)

    def _stored(self) -> tuple[ControllerState, Mapping[str, Any], int] | None:
        try:
            result = self._google.read(self._object)
        except RequestError as error:
            raise UnreachableError(f"{self._where}: {error}") from None
        if result is None:
            self._generation = 0
            return None
        state, stored = parse(result[0], self._where)
        return state, stored, result[1]

    def _refuse_other(self, kept: Mapping[str, Any]) -> None:
        leader = kept.get("leader") or {}
        if leader.get("id") != self._id and _alive(leader, self._now()):
            raise self._other(leader)

    def _other(self, leader: Mapping[str, Any]) -> LeaseHeldError:
        ago_s = max(0.0, self._now() - float(leader.get("at_s") or 0))
        fix = (
            "leave it to that one and look with fleet status or monitor --watch; or end it with Ctrl+C; "
            f"where it is gone already, wait {max(0.0, EXPIRES_S - ago_s):.0f} s"
        )
        who = f"on {leader.get('host') or 'a host unknown'}, process {leader.get('process') or 'unknown'}"
        output = f"another `fleet` acts, {who}, its lease renewed {ago_s:.0f} s ago"
        return LeaseHeldError(f"{self._where}: {output}\n    fix: {fix}")


def _alive(leader: Mapping[str, Any], now_s: float) -> bool:
    """Return whether a controller is alive; one whose process is gone from this host is waited for no more.

    Should hosts share a name: who was written over stops by itself.
    """
    current = leader.get("host") == socket.gethostname() and bool(leader.get("process"))
    if current and not runs(int(leader["process"])):
        return False
    return now_s - float(leader.get("at_s") or 0) < EXPIRES_S


def runs(process: int) -> bool:
    """Return whether a process exists on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def leader_of(google: Google, stack: str, now_s: float) -> tuple[ControllerState, str]:
    """Return the state, and a description of the acting controller; empty where nobody does.

    Raises:
        RequestError: the bucket didn't answer.
        FleetError: what it holds is none of ours.
    """
    result = google.read(object_of(stack))
    if result is None:
        return ControllerState(), ""
    state, stored = parse(result[0], f"gs://{google.controller_bucket}/{object_of(stack)}")
    leader = stored.get("leader") or {}
    if not _alive(leader, now_s):
        return state, ""
    ago_s = max(0.0, now_s - float(leader["at_s"]))
    return state, f"one on {leader.get('host') or 'a host unknown'}, its lease renewed {ago_s:.0f} s ago"


class ReadOnlyStore:
    """Another controller's state, for observers; a bucket that doesn't answer is no reason not to."""

    def __init__(self, google: Google, stack: str):
        self._google, self._object = google, object_of(stack)

    def read(self) -> ControllerState:
        """Return the stored state, as far as it can be read."""
        try:
            result = self._google.read(self._object)
            return parse(result[0], self._object)[0] if result else ControllerState()
        except (RequestError, FleetError):
            return ControllerState()

    def write(self, state: ControllerState, renew: bool = True) -> None:
        """Store nothing: the controller observes the same."""

    def renew(self, state: ControllerState) -> None:
        """Do nothing: an observer holds no lease."""

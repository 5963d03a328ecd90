"""Where a keeper's memory is kept, and who the keeper is: one at a time, who shows a sign every minute.

An object in the bucket, written only over the generation that was read. A keeper that finds another's sign
of the last three minutes doesn't begin; one that finds another's writing where its own was stops.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from fleet.errors import FleetError
from fleet.failures import Kind
from fleet.google import AskedError, Google
from fleet.memory import Memory, parse

OBJECT = "fleet/memory.json"
SIGN_S, DEAD_AFTER_S = 60.0, 180.0


class UnreachableError(FleetError):
    """The bucket didn't answer: nothing is remembered, so nothing may be done."""


class _StaleError(FleetError):
    """The bucket holds another generation than the one that was to be replaced."""


class BucketBooks:
    """A memory in the bucket, for one keeper."""

    def __init__(self, google: Google, now: Callable[[], float] = time.time):
        self._google, self._now = google, now
        self._id, self._host = uuid.uuid4().hex, socket.gethostname()
        self._generation, self._written_s = 0, 0.0
        self._where = f"gs://{google.bucket}/{OBJECT}"

    def read(self) -> Memory:
        """What was remembered. Raises FleetError where another keeper is at work."""
        found = self._found()
        if found is None:
            return Memory()
        memory, kept, self._generation = found
        self._refuse_other(kept)
        return memory

    def write(self, memory: Memory, sign: bool = True) -> None:
        """Remembers, with a sign of life.

        Args:
            memory: all of it.
            sign: False to give the place up.

        Raises:
            UnreachableError: the bucket didn't answer.
            FleetError: another keeper has written since.
        """
        keeper = {
            "id": self._id, "host": self._host, "process": os.getpid(), "at_s": self._now() if sign else 0.0,
        }  # fmt: skip
        text = json.dumps(memory.to_json() | {"keeper": keeper})
        try:
            self._write(text)
        except _StaleError:
            found = self._found()  # our own, if only the answer to an earlier write was lost
            if found is None or (found[1].get("keeper") or {}).get("id") != self._id:
                raise self._other((found[1] if found else {}).get("keeper") or {}) from None
            self._generation = found[2]
            if found[1] != json.loads(text):
                self._write_again(text)
        self._written_s = self._now()

    def _write_again(self, text: str) -> None:
        try:
            self._write(text)
        except _StaleError as error:
            raise UnreachableError(f"{self._where}: {error}") from None

    def _write(self, text: str) -> None:
        try:
            self._generation = self._google.write(OBJECT, text, self._generation)
        except AskedError as error:
            kind = _StaleError if error.failure.kind is Kind.INVALID else UnreachableError
            raise kind(f"{self._where}: {error}") from None

    def sign(self, memory: Memory) -> None:
        """Writes where the last sign is a minute old."""
        if self._now() - self._written_s > SIGN_S:
            self.write(memory)

    def _found(self) -> tuple[Memory, Mapping[str, Any], int] | None:
        try:
            found = self._google.read(OBJECT)
        except AskedError as error:
            raise UnreachableError(f"{self._where}: {error}") from None
        if found is None:
            self._generation = 0
            return None
        memory, kept = parse(found[0], self._where)
        return memory, kept, found[1]

    def _refuse_other(self, kept: Mapping[str, Any]) -> None:
        keeper = kept.get("keeper") or {}
        if keeper.get("id") != self._id and _alive(keeper, self._now()):
            raise self._other(keeper)

    def _other(self, keeper: Mapping[str, Any]) -> FleetError:
        ago_s = max(0.0, self._now() - float(keeper.get("at_s") or 0))
        fix = (
            "leave it to that one and look with fleet status or monitor --watch; or end it with Ctrl+C; "
            f"where it is gone already, wait {max(0.0, DEAD_AFTER_S - ago_s):.0f} s"
        )
        who = f"on {keeper.get('host') or 'a host unknown'}, process {keeper.get('process') or 'unknown'}"
        said = f"another `fleet` acts, {who}, its last sign {ago_s:.0f} s ago"
        return FleetError(f"{self._where}: {said}\n    fix: {fix}")


def _alive(keeper: Mapping[str, Any], now_s: float) -> bool:
    """Whether a keeper shows signs; one whose process is gone from this very host is waited for no more.

    Should hosts share a name: who was written over stops by itself.
    """
    here = keeper.get("host") == socket.gethostname() and bool(keeper.get("process"))
    if here and not runs(int(keeper["process"])):
        return False
    return now_s - float(keeper.get("at_s") or 0) < DEAD_AFTER_S


def runs(process: int) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def keeper_of(google: Google, now_s: float) -> tuple[Memory, str]:
    """What is remembered, and who keeps the fleet now, in words; empty where nobody does.

    Raises:
        AskedError: the bucket didn't answer.
        FleetError: what it holds is none of ours.
    """
    found = google.read(OBJECT)
    if found is None:
        return Memory(), ""
    memory, kept = parse(found[0], f"gs://{google.bucket}/{OBJECT}")
    keeper = kept.get("keeper") or {}
    if not _alive(keeper, now_s):
        return memory, ""
    ago_s = max(0.0, now_s - float(keeper["at_s"]))
    return memory, f"one at work on {keeper.get('host') or 'a host unknown'}, its last sign {ago_s:.0f} s ago"


class Borrowed:
    """Somebody else's memory, for those who only look; a bucket that doesn't answer is no reason not to."""

    def __init__(self, google: Google):
        self._google = google

    def read(self) -> Memory:
        """What was remembered, as far as it can be read."""
        try:
            found = self._google.read(OBJECT)
            return parse(found[0], OBJECT)[0] if found else Memory()
        except (AskedError, FleetError):
            return Memory()

    def write(self, memory: Memory, sign: bool = True) -> None:
        """Nobody who only looks has anything to remember."""
        raise AssertionError(f"{memory} was to be kept by somebody who only looks")

    def sign(self, memory: Memory) -> None:
        """Who only looks is no keeper."""

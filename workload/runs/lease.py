"""Lease on a run, or on a stream of an extraction: a single start at a time.

Two starts of a run would remove each other's saves, two of a stream would duplicate all work. So worker 0
holds an object, `lease.json` or `leases/*`, and renews it every few seconds. A start that finds another's
lease waits until it expires; a start whose own lease is gone or replaced ends before it saves or removes
anything.
There is no wait if the holder is known to have ended: its process on this machine has exited, or its
machine was rebooted or recreated under the same TPU's name.
Remaining risk: a worker that is suspended during a save and continues later. Its step may then be complete
but damaged, and is passed over, since a step is read before it is used.
"""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from settings_schema import foreign
from settings_schema.foreign import ForeignError
from workload.errors import StoreError, TakenError
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store

_log = logging.getLogger(__name__)

NAME = "lease.json"  # of a run as a whole
EVERY_S = 5.0  # between renewals, of 200 bytes each
EXPIRES_S = 20.0  # without a renewal


class Lease:
    """Lease of this start, held from `take` to `release` or within the context."""

    def __init__(
        self,
        store: Store,
        node: str,
        report: Callable[[str], None] = print,
        every_s: float = EVERY_S,
        expires_s: float = EXPIRES_S,
        name: str = NAME,
        what: str = "this run",
    ):
        """Describe this start; `take` acquires the lease.

        Args:
            store: of the run.
            node: name of the TPU; empty outside of TPUs.
            report: receives a line before a wait.
            every_s: between two renewals.
            expires_s: without a renewal, until the lease expires.
            name: of the object.
            what: subject of the lease, for messages.
        """
        self._name, self._what = name, what
        self._store, self._report, self._every_s, self._expires_s = store, report, every_s, expires_s
        self._me: dict[str, Any] = {
            "start": str(uuid.uuid4()),
            "node": node,
            "host": socket.gethostname(),
            "boot": _boot(),
            "pid": os.getpid(),
            "began": _began(os.getpid()),
        }
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Acquire the lease, after a wait if another start holds it.

        Raises:
            TakenError: another start renews its lease.
            StoreError: storage is unusable.
        """
        held = self._read()
        if held and not self._is_over(held):
            self._outwait(held)
        self._write()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check that this start still holds the lease.

        Raises:
            TakenError: another start has taken it.
        """
        held = self._read()
        if held is None:  # only its holder removes a lease
            raise TakenError(
                f"{self._store.url}: the lease of {self._what} is gone: another start took it over and has"
                " ended; this start ends\n    fix: restart it, if anything remains to be done"
            )
        if held["start"] != self._me["start"]:
            raise TakenError(
                f"{self._store.url}: {_holder(held)} has taken {self._what} over; this start ends\n"
                "    fix: let one start continue; give another run another --name"
            )

    def release(self) -> None:
        """Remove the lease, so that the next start needn't wait."""
        if self._thread:
            self._released.set()
            self._thread.join()
            try:
                self.check()
                self._store.delete(self._name)
            except (TakenError, StoreError):
                pass  # held by another start, or expires by itself

    def __enter__(self) -> "Lease":
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_over(self, held: dict[str, Any]) -> bool:
        """Return True if the holder is known to have ended."""
        if held["boot"] and held["boot"] == self._me["boot"]:
            return bool(held["pid"] == os.getpid() or _began(held["pid"]) != held["began"])
        return bool(held["node"] and held["node"] == self._me["node"])

    def _outwait(self, held: dict[str, Any]) -> None:
        """Wait for a renewal, shorter if the lease has expired; either clock may be wrong."""
        expired = time.time() > held["written"] + self._expires_s
        wait_s = min(2 * self._every_s, self._expires_s) if expired else self._expires_s
        self._report(f"{_holder(held)} holds {self._what}; waiting {wait_s:g} s for its renewal")
        give_up = time.monotonic() + wait_s
        while time.monotonic() < give_up:
            time.sleep(self._every_s / 5)
            now = self._read()
            if now is None or (now["start"] == held["start"] and self._is_over(now)):
                return
            if now != held:
                raise TakenError(
                    f"{self._store.url}: {_holder(now)} is at work on {self._what}\n"
                    "    fix: stop it there, or give your run another --name"
                )

    def _renew(self) -> None:
        while not self._released.wait(self._every_s):
            try:
                self.check()
                self._write()
            except TakenError:
                return  # the next save checks again
            except StoreError as error:
                _log.warning("lease not renewed: %s", str(error).splitlines()[0])

    def _read(self) -> dict[str, Any] | None:
        try:
            held = foreign.parse(self._store.read(self._name))
            written = foreign.number(held, "written")
        except (MissingObjectError, ForeignError):  # a damaged lease counts as none
            return None
        whole = written is not None and held.keys() >= self._me.keys()
        return {**held, "written": written} if whole else None

    def _write(self) -> None:
        self._store.write(self._name, json.dumps({**self._me, "written": time.time()}).encode())


def of_stream(
    store: Store, stream: int, node: str, report: Callable[[str], None] = print, every_s: float = EVERY_S
) -> Lease:
    """Create the lease of a single stream of an extraction."""
    name = f"leases/stream_{stream:03}.json"
    return Lease(store, node, report, every_s, name=name, what=f"stream {stream} of this run")


def _boot() -> str:
    """Return the ids of this boot and of the pid namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"  # containers number their own processes
    except OSError:
        return ""


def _began(pid: int) -> str:
    """Return a process's start time in clock ticks; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _holder(held: dict[str, Any]) -> str:
    return f"process {held['pid']} on {held['node'] or held['host']}"

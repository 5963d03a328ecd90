"""Who trains a run, or extracts a stream of one: one start at a time.

Two starts of a run would remove one another's saves, two of a stream compute everything twice. So
worker 0 holds an object, `lease.json` or one below `leases/`, and writes it anew every few seconds; a
start that finds another's waits until nobody does so any more, and one that finds its own gone has been
replaced, and ends before it saves or removes anything.
It need not wait where the other is known to be over: its process on this machine has ended, or its
machine was booted again or recreated under the same TPU's name.
What is left is a worker that stands still in the middle of a save and wakes up later: its step may
then be complete without being whole, and is passed over, since a step is read before it is used.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workload.errors import StoreError, TakenError
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store

NAME = "lease.json"  # of a run as a whole
EVERY_S = 5.0  # a write of 200 bytes
EXPIRES_S = 20.0  # without one


class Lease:
    """This start's; held from `take` to `release`, or as a context."""

    def __init__(
        self,
        store: Store,
        node: str,
        say: Callable[[str], None] = print,
        every_s: float = EVERY_S,
        expires_s: float = EXPIRES_S,
        name: str = NAME,
        what: str = "this run",
    ):
        """Takes nothing yet.

        Args:
            store: of the run.
            node: the TPU's name; empty where there is none.
            say: takes a line about waiting.
            every_s: between two writes.
            expires_s: without a write, after which a lease is nobody's.
            name: of the object.
            what: it is that is held, for people.
        """
        self._name, self._what = name, what
        self._store, self._say, self._every_s, self._expires_s = store, say, every_s, expires_s
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
        """Returns once it is this start's.

        Raises:
            TakenError: another start is at work on it, and continues.
            StoreError: storage can't be used.
        """
        held = self._read()
        if held and not self._is_over(held):
            self._outwait(held)
        self._write()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Makes sure that it is still this start's.

        Raises:
            TakenError: another start has taken it.
        """
        held = self._read()
        if held is None:  # only who holds it gives it back
            raise TakenError(
                f"{self._store.url}: the lease of {self._what} is gone: another start took it over and has"
                " ended; this start ends\n    fix: start again, if anything is left to do"
            )
        if held["start"] != self._me["start"]:
            raise TakenError(
                f"{self._store.url}: {_who(held)} has taken {self._what} over; this start ends\n"
                "    fix: let one of them continue; another run needs another --name"
            )

    def release(self) -> None:
        """Gives it back, so that the next start need not wait."""
        if self._thread:
            self._released.set()
            self._thread.join()
            try:
                self.check()
                self._store.delete(self._name)
            except (TakenError, StoreError):
                pass  # it is another's, or expires by itself

    def __enter__(self) -> "Lease":
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_over(self, held: dict[str, Any]) -> bool:
        """Whether the start that wrote this is known to have ended."""
        if held["boot"] and held["boot"] == self._me["boot"]:
            return bool(held["pid"] == os.getpid() or _began(held["pid"]) != held["began"])
        if held["node"] and held["node"] == self._me["node"]:
            return True
        return bool(time.time() > held["written"] + self._expires_s)

    def _outwait(self, held: dict[str, Any]) -> None:
        self._say(f"{_who(held)} has {self._what}; waiting {self._expires_s:g} s for a sign of it")
        give_up = time.monotonic() + self._expires_s
        while time.monotonic() < give_up:
            time.sleep(self._every_s / 5)
            now = self._read()
            if now is None or (now["start"] == held["start"] and self._is_over(now)):
                return
            if now != held:
                raise TakenError(
                    f"{self._store.url}: {_who(now)} is at work on {self._what}\n"
                    "    fix: stop it there, or give your run another --name"
                )

    def _renew(self) -> None:
        while not self._released.wait(self._every_s):
            try:
                self.check()
                self._write()
            except TakenError:
                return  # whoever saves next hears of it
            except StoreError as error:
                print(f"lease not renewed: {str(error).splitlines()[0]}", flush=True)

    def _read(self) -> dict[str, Any] | None:
        try:
            held = json.loads(self._store.read(self._name))
        except (MissingObjectError, ValueError):  # what is damaged is nobody's
            return None
        whole = isinstance(held, dict) and held.keys() >= {*self._me, "written"}
        return held if whole and isinstance(held["written"], int | float) else None

    def _write(self) -> None:
        self._store.write(self._name, json.dumps({**self._me, "written": time.time()}).encode())


def of_stream(
    store: Store, stream: int, node: str, say: Callable[[str], None] = print, every_s: float = EVERY_S
) -> Lease:
    """That of one stream of an extraction, by its number: the others of the run are others' work."""
    name = f"leases/stream_{stream:03}.json"
    return Lease(store, node, say, every_s, name=name, what=f"stream {stream} of this run")


def _boot() -> str:
    """This boot of this machine, and whose process numbers count here; empty where there is no telling."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"  # a container has numbers of its own
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When a process began, by the machine's clock; empty if it is none any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _who(held: dict[str, Any]) -> str:
    return f"process {held['pid']} on {held['node'] or held['host']}"

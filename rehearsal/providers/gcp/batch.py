"""Joining changes that arrive together into one request, as the official provider does.

Several services to enable, or members to add to one policy, are collected for a short while and
then sent at once: otherwise each would read, modify and write the same thing after the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Batch:
    items: list[Any] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None


class Batches:
    """Collections under way, by key, and a lock for each thing that only one may change at a time."""

    def __init__(self, window_s: float) -> None:
        """`window_s`: how long to wait for others (the official provider: 3 s)."""
        self._window_s = window_s
        self._lock = threading.Lock()
        self._open: dict[str, _Batch] = {}
        self._locks: dict[str, threading.Lock] = {}

    def join(self, key: str, item: Any, send: Callable[[list[Any]], Any]) -> Any:
        """Add `item` to the batch of `key`; returns what `send` returned for the whole of it.

        The first to come waits for the window and calls `send`; an error of it is everybody's.
        """
        with self._lock:
            batch = self._open.get(key)
            leads = batch is None
            if batch is None:
                batch = self._open[key] = _Batch()
            batch.items.append(item)
        if not leads:
            batch.done.wait()
        else:
            time.sleep(self._window_s)
            with self._lock:
                del self._open[key]
            try:
                batch.result = send(batch.items)
            except BaseException as error:  # handed to everyone who waits, this thread included
                batch.error = error
            batch.done.set()
        if batch.error is not None:
            raise batch.error
        return batch.result

    def lock(self, key: str) -> threading.Lock:
        """Return the lock named `key`."""
        with self._lock:
            return self._locks.setdefault(key, threading.Lock())

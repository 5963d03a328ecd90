"""Traces of a few steps for xprof: at steps of the config, or on SIGUSR1.

    kill -USR1 PID        the next three steps, of that worker
    xprof --logdir gs://my-project-checkpoints/runs/first/profile

A trace slows its steps down; it doesn't change their results.
"""
# mypy: allow-untyped-calls

import logging
import signal
import tempfile
from pathlib import Path

import jax

from workload.errors import StoreError
from workload.runs.store import Store

_log = logging.getLogger(__name__)

_ON_REQUEST = 3  # steps


class Profiler:
    """Traces of this worker's steps."""

    def __init__(self, store: Store, worker: int, first: int, last: int):
        """Trace steps `first` to `last`, or none if `first` is 0, and three steps on each SIGUSR1."""
        self._store, self._worker = store, worker
        self._first, self._last = first, last
        self._requested = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        signal.signal(signal.SIGUSR1, self._request)

    def _request(self, *_: object) -> None:
        self._requested = True

    def before(self, step: int) -> None:
        """Begin a trace if it is due; call it before each step."""
        if self._requested:
            self._requested = False
            self._first, self._last = step, step + _ON_REQUEST - 1
        if step == self._first and self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="profile-")
            jax.profiler.start_trace(self._folder.name)

    def after(self, step: int, result: object) -> None:
        """End a trace if it is due, once `result` is ready; call it after each step."""
        if self._folder is not None and step >= self._last:
            jax.block_until_ready(result)
            self._finish()

    def close(self) -> None:
        """End a trace under way."""
        if self._folder is not None:
            self._finish()

    def _finish(self) -> None:
        jax.profiler.stop_trace()
        assert self._folder is not None
        root, self._folder = self._folder, None
        count = 0
        for path in sorted(Path(root.name).rglob("*")):
            if path.is_file():
                name = f"profile/worker-{self._worker}/{path.relative_to(root.name).as_posix()}"
                try:
                    self._store.write(name, path.read_bytes())
                    count += 1
                except StoreError as error:
                    _log.warning("profile not written: %s", error)
        root.cleanup()
        print(
            f"profile of steps {self._first} to {self._last}: {count} files in {self._store.url}/profile",
            flush=True,
        )

"""Traces of a few steps for xprof: at steps named in the config, or when SIGUSR1 asks for one.

    kill -USR1 PID        the next three steps, of that worker
    xprof --logdir gs://my-project-checkpoints/runs/first/profile

A trace costs the steps that it covers some time, and nothing of their result.
"""
# mypy: allow-untyped-calls

import signal
import tempfile
from pathlib import Path

import jax

from workload.errors import StoreError
from workload.runs.store import Store

_ON_REQUEST = 3  # steps


class Profiler:
    """Begins and ends traces around steps; worker `worker` keeps its own."""

    def __init__(self, store: Store, worker: int, first: int, last: int):
        """Traces steps `first` to `last`, or none if `first` is 0; and whenever it is asked."""
        self._store, self._worker = store, worker
        self._first, self._last = first, last
        self._asked = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        signal.signal(signal.SIGUSR1, self._ask)

    def _ask(self, *_: object) -> None:
        self._asked = True

    def before(self, step: int) -> None:
        """To be called before each step."""
        if self._asked:
            self._asked = False
            self._first, self._last = step, step + _ON_REQUEST - 1
        if step == self._first and self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="profile-")
            jax.profiler.start_trace(self._folder.name)

    def after(self, step: int, result: object) -> None:
        """To be called after each step with what it gave; waits for it where a trace ends."""
        if self._folder is not None and step >= self._last:
            jax.block_until_ready(result)
            self._finish()

    def close(self) -> None:
        """Ends a trace under way."""
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
                    print(f"not written: {error}", flush=True)
        root.cleanup()
        print(
            f"profile of steps {self._first} to {self._last}: {count} files in {self._store.url}/profile",
            flush=True,
        )

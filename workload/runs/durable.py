"""What lasts of a run whose steps are saved in a bucket of their own.

A bucket that nothing can be lost from keeps what is removed for weeks, and bills it: of a run that saves
every three minutes, thousands of checkpoints. So steps are saved where a removed object is gone
(`$STEPS_BUCKET`), and from there worker 0 has one a day and the last one copied into the run's own
folder. The copy is made inside storage: no host reads or writes for it.
"""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from workload.errors import StoreError
from workload.runs.checkpoints import FOLDER, MARKER, list_steps, remove_step
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store, copy
from workload.train.cluster import first_line

NOTE = "durable.json"
_COPIED_AT_ONCE = 8  # objects


class DurableCopies:
    """Worker 0's copies, from `steps` into `run`; nothing to do where the two are one."""

    def __init__(self, run: Store, steps: Store, every_h: float, keep: int):
        """Args:
        run: where the run is kept.
        steps: where its checkpoints are saved.
        every_h: between two copies while it trains.
        keep: newest copies that are left standing.
        """
        self.steps = steps
        self._run, self._every_s, self._keep = run, every_h * 3600, keep
        self._alone = run.url == steps.url
        self._last = 0.0  # Unix time of the newest copy
        self._copying: threading.Thread | None = None

    def begin(self) -> None:
        """Before a restore: takes over the newest copy, where the steps' bucket has nothing as new.

        Raises:
            StoreError: storage can't be read or written.
        """
        if self._alone:
            return
        self.steps.write("config.json", self._run.read("config.json"))  # which makes it a run to look at
        try:
            self._last = float(json.loads(self._run.read(NOTE))["time"])
        except (MissingObjectError, ValueError, KeyError, TypeError):
            self._note(0)  # the first one a day from now, however often the run starts until then
        stored, saved = list_steps(self._run).complete, list_steps(self.steps).complete
        if stored and stored[-1] > max(saved, default=-1):
            _copy_step(self._run, self.steps, stored[-1])

    def saved(self, step: int | None) -> None:
        """Begins to copy a complete step in the background, where a copy is due."""
        due = time.time() - self._last >= self._every_s
        if self._alone or step is None or not due or (self._copying and self._copying.is_alive()):
            return
        self._copying = threading.Thread(target=self._try, args=(step,), name="lasting", daemon=True)
        self._copying.start()

    def end(self, step: int) -> None:
        """Copies the last step of a run that is done.

        Raises:
            StoreError: storage can't be read or written.
        """
        if self._alone:
            return
        if self._copying:
            self._copying.join()
        self._keep_step(step)

    def _try(self, step: int) -> None:
        try:
            self._keep_step(step)
        except StoreError as error:  # retried with the next save
            print(f"step {step} isn't copied yet: {first_line(error)}", flush=True)

    def _keep_step(self, step: int) -> None:
        if step not in list_steps(self._run).complete:
            _copy_step(self.steps, self._run, step)
        self._note(step)
        for old in list_steps(self._run).complete[: -self._keep]:
            remove_step(self._run, old)

    def _note(self, step: int) -> None:
        self._last = time.time()
        self._run.write(NOTE, json.dumps({"step": step, "time": self._last}).encode())


def _copy_step(source: Store, target: Store, step: int) -> None:
    """The marker comes last: what a crash leaves behind is incomplete, and goes before the next attempt."""
    remove_step(target, step)
    marker = f"{FOLDER}/{step}/{MARKER}"
    names = [name for name in source.list(f"{FOLDER}/{step}/") if name != marker]
    with ThreadPoolExecutor(_COPIED_AT_ONCE, "copy") as pool:
        list(pool.map(lambda name: copy(source, name, target), names))
    copy(source, marker, target)

"""Durable copies of checkpoints that are saved in a bucket without soft delete.

A bucket with soft delete keeps and bills removed objects for weeks: thousands of checkpoints of a run that
saves every three minutes. So steps are saved in `$STEPS_BUCKET`, without soft delete, and worker 0 copies
one checkpoint a day and the last one into the run's own folder, inside storage.
"""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from settings_schema import foreign
from settings_schema.foreign import ForeignError
from workload.errors import StoreError
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store, copy
from workload.train import best
from workload.train.cluster import first_line
from workload.train.stored_steps import FOLDER, MARKER, list_steps, remove_step

_log = logging.getLogger(__name__)

NOTE = "durable.json"
_COPIED_AT_ONCE = 8  # objects


class DurableCopies:
    """Copies from `steps` into `run` by worker 0; without effect if the two are the same."""

    def __init__(self, run: Store, steps: Store, every_h: float, keep: int, keep_best: bool = False):
        """Create the schedule of copies.

        Args:
            run: store of the run.
            steps: store of its checkpoints.
            every_h: between two copies during training.
            keep: number of newest copies to retain.
            keep_best: copy the best step, too, and retain it.
        """
        self.steps = steps
        self._run, self._every_s, self._keep = run, every_h * 3600, keep
        self._keep_best = keep_best
        self._alone = run.url == steps.url
        self._due = 0.0  # monotonic time of the next copy
        self._copying: threading.Thread | None = None

    def begin(self) -> None:
        """Copy the newest durable checkpoint back before a restore, if the steps' bucket has none as new.

        Raises:
            StoreError: storage can't be read or written.
        """
        if self._alone:
            return
        self.steps.write("config.json", self._run.read("config.json"))  # for `open_run`
        try:
            noted = foreign.number(foreign.parse(self._run.read(NOTE)), "time")
        except (MissingObjectError, ForeignError):
            noted = None
        if noted is None:
            self._note(0)  # the first copy is due a day after the first start
        else:
            age_s = max(0.0, time.time() - noted)  # a later note is of another clock
            self._due = time.monotonic() + self._every_s - age_s
        stored, saved = list_steps(self._run).complete, list_steps(self.steps).complete
        if stored and stored[-1] > max(saved, default=-1):
            _copy_step(self._run, self.steps, stored[-1])

    def saved(self, step: int | None) -> None:
        """Begin to copy a complete step in the background, if a copy is due."""
        due = time.monotonic() >= self._due
        if self._alone or step is None or not due or (self._copying and self._copying.is_alive()):
            return
        self._copying = threading.Thread(target=self._try, args=(step,), name="durable", daemon=True)
        self._copying.start()

    def end(self, step: int) -> None:
        """Copy the last step of a finished run, and its best one.

        Raises:
            StoreError: storage can't be read or written.
        """
        if self._alone:
            return
        self.wait()
        if self._keep_best and (
            chosen := best.choose(best.read(self.steps, list_steps(self.steps).complete))
        ):
            self._keep_step(chosen)
        self._keep_step(step)

    def wait(self) -> None:
        """Wait until no copy is under way."""
        if self._copying:
            self._copying.join()

    def _try(self, step: int) -> None:
        try:
            self._keep_step(step)
        except StoreError as error:  # retried with the next save
            _log.warning("step %s isn't copied yet: %s", step, first_line(error))

    def _keep_step(self, step: int) -> None:
        if step not in list_steps(self._run).complete:
            _copy_step(self.steps, self._run, step)
        self._note(step)
        complete = list_steps(self._run).complete
        kept = best.choose(best.read(self._run, complete)) if self._keep_best else None
        for old in complete[: -self._keep]:
            if old != kept:
                remove_step(self._run, old)

    def _note(self, step: int) -> None:
        self._due = time.monotonic() + self._every_s
        self._run.write(NOTE, json.dumps({"step": step, "time": time.time()}).encode())


def _copy_step(source: Store, target: Store, step: int) -> None:
    """Copy a step, its marker last: a crash leaves an incomplete step, which the next attempt removes."""
    remove_step(target, step)
    marker = f"{FOLDER}/{step}/{MARKER}"
    names = [name for name in source.list(f"{FOLDER}/{step}/") if name != marker]
    with ThreadPoolExecutor(_COPIED_AT_ONCE, "copy") as pool:
        list(pool.map(lambda name: copy(source, name, target), names))
    copy(source, marker, target)

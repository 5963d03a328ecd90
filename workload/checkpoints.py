"""Checkpoints of a run: saved by all workers, complete once their marker is there.

Orbax picks its commit by the spelling of a path and takes a gcsfuse mount for a disk,
where renaming a folder isn't atomic. So every path gets the marker, `commit_success.txt`,
written after everything else; a step without it doesn't exist.
"""
# mypy: allow-untyped-calls

import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import orbax.checkpoint as ocp  # type: ignore[import-untyped]
from etils import epath  # type: ignore[import-untyped]
from orbax.checkpoint.options import AtomicityMode, AtomicityOptions  # type: ignore[import-untyped]

from workload.cluster import Cluster, first_line
from workload.config import CheckpointConfig
from workload.errors import RunError, StoreError
from workload.store import Store

# gcsfs asks, by gRPC and before every call, whether the bucket is hierarchical. It serves either
# kind without knowing, and a bucket reached through a private endpoint may not answer gRPC at all.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

FOLDER = "checkpoints"
MARKER = "commit_success.txt"
_STEP = re.compile(rf"{FOLDER}/(\d+)/(.+)")
_REMOVED_AT_ONCE = 8  # objects; as many connections as the client keeps open, and two to spare
_BY_MARKER = AtomicityOptions(mode=AtomicityMode.COMMIT_FILE)


def _by_others(record: logging.LogRecord) -> bool:
    if record.name == "asyncio":  # names the task that failed, but of several gathered ones only their error
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.extract_tb(error.__traceback__) if error else []
        return not any("orbax" in where for where in [record.getMessage(), *(one.filename for one in frames)])
    return "orbax" not in record.pathname or not record.exc_info


@cache
def quiet_failures() -> None:
    """A save that fails is told once, by `_told`.

    Orbax logs it several times over, a traceback each; asyncio adds one for each write that was
    under way, and the write one more, from below Python, that the event loop is closed.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_by_others)
    told = sys.unraisablehook

    def tell(ignored: "sys.UnraisableHookArgs") -> None:
        code = getattr(ignored.object, "cr_code", None)  # of a coroutine
        orbaxs = code is not None and "orbax" in code.co_filename
        if str(ignored.exc_value) != "Event loop is closed" and not orbaxs:
            told(ignored)

    sys.unraisablehook = tell


@dataclass(frozen=True)
class Steps:
    """The steps that have a folder, oldest first."""

    complete: tuple[int, ...]
    incomplete: tuple[int, ...]


def list_steps(store: Store) -> Steps:
    """Which steps are there, read from storage and nowhere else."""
    marked: dict[int, bool] = {}
    for name in store.list(f"{FOLDER}/"):
        if match := _STEP.fullmatch(name):
            step = int(match[1])
            marked[step] = marked.get(step, False) or match[2] == MARKER
    return Steps(
        complete=tuple(sorted(step for step, whole in marked.items() if whole)),
        incomplete=tuple(sorted(step for step, whole in marked.items() if not whole)),
    )


@dataclass(frozen=True)
class Restored:
    """What a run goes on from.

    Attributes:
        step: updates already done; 0 for a run that has no checkpoint yet.
        state: the state after them; None at 0.
        passed_over: newer steps that couldn't be used, with the reason.
    """

    step: int
    state: Any
    passed_over: tuple[tuple[int, str], ...]


class Checkpoints:
    """Saves in the background, restores the newest complete step."""

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        config: CheckpointConfig,
        guard: Callable[[], None] = lambda: None,
    ):
        """Opens nothing yet.

        Args:
            store: of the run.
            cluster: all workers.
            config: how many to keep, how long to wait.
            guard: raises on worker 0 where the run is another's by now; asked before anything changes.
        """
        quiet_failures()
        self._store, self._cluster, self._keep, self._guard = store, cluster, config.keep, guard
        self._root = epath.Path(store.url) / FOLDER
        self._saver = ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=config.timeout_s, post_finalization_callback=self._committed
            ),
            atomicity_options=_BY_MARKER,
        )
        # A restore mustn't wait for the others: where one worker fails, all have to hear of it.
        me = cluster.membership.worker
        alone = ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})
        self._loader = ocp.Checkpointer(
            ocp.StandardCheckpointHandler(), multiprocessing_options=alone, atomicity_options=_BY_MARKER
        )
        self._complete: set[int] = set()
        self._unreadable: set[int] = set()  # complete, and left alone; they don't count as kept
        self._saving: int | None = None
        self._retiring: threading.Thread | None = None
        self._begun = 0.0
        self._size_gb = 0.0  # of a checkpoint
        self.save_s = 0.0  # from the begin of a save until it was complete; 0 while none is

    @property
    def newest(self) -> int | None:
        """The newest complete step that can be read."""
        return max(self._complete - self._unreadable, default=None)

    def restore(self, abstract_state: Any) -> Restored:
        """The newest complete step that every worker can read.

        Args:
            abstract_state: shapes, dtypes and shardings of the state.

        Raises:
            RunError: complete steps are there, but none can be read. Starting over would hide it.
        """
        found = self._cluster.agree(self._tidy)
        self._complete = set(found["complete"])
        passed_over = [(step, "no marker: it was never completed") for step in found["incomplete"]]
        for step in sorted(self._complete, reverse=True):
            state: Any = None  # of the step before: there is no room for two
            state, problem = self._try(step, abstract_state)
            if self._cluster.all_true(not problem):
                newer = tuple(sorted(entry for entry in passed_over if entry[0] > step))
                return Restored(step, state, newer)
            self._unreadable.add(step)
            passed_over.append((step, problem or "another worker couldn't read it"))
        if self._complete:
            reasons = "; ".join(f"step {step}: {reason}" for step, reason in passed_over)
            fix = "look at the reasons; to start over, give the run another --name"
            raise RunError(f"{self._root}: no checkpoint can be read ({reasons})\n    fix: {fix}")
        return Restored(0, None, tuple(passed_over))

    def _tidy(self) -> dict[str, tuple[int, ...]]:
        """Lists the steps, and clears what unfinished saves left: their steps will be saved again."""
        steps = list_steps(self._store)
        for step in steps.incomplete:
            self._remove(step)
        return {"complete": steps.complete, "incomplete": steps.incomplete}

    def _try(self, step: int, abstract_state: Any) -> tuple[Any, str]:
        try:
            restore = ocp.args.StandardRestore(abstract_state)
            return jax.block_until_ready(self._loader.restore(self._root / str(step), args=restore)), ""
        except Exception as error:  # whatever is wrong with it, an older step may do
            return None, first_line(error)

    def save(self, step: int, state: Any) -> bool:
        """Begins to save; a step that is complete already is left as it is, unless it can't be read.

        Waits for the save before it; what is then too old is retired in the background.

        Raises:
            TakenError: the run is another start's by now.
            StoreError: this save or the one before it failed.
        """
        self._cluster.agree(self._guard)
        self._complete_save()
        if step in self._unreadable:
            self._cluster.agree(lambda: self._remove(step))
            self._unreadable.discard(step)
            self._complete.discard(step)
        if step in self._complete:
            return False
        self._begun = time.monotonic()
        self._size_gb = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e9
        with self._told(step):
            self._saver.save(self._root / str(step), args=ocp.args.StandardSave(state), force=True)
        self._saving = step
        return True

    def _committed(self) -> None:
        self.save_s = time.monotonic() - self._begun

    def wait(self) -> None:
        """Returns once the save under way, if any, is complete and what is too old is gone.

        Raises:
            TakenError: the run is another start's by now.
            StoreError: the save failed.
        """
        self._cluster.agree(self._guard)
        self._complete_save()
        self._cluster.agree(self._retired)  # the others have nothing to remove, and would leave without it

    def _retired(self) -> None:
        if self._retiring:
            self._retiring.join()

    def _complete_save(self) -> None:
        if self._saving is None:
            return
        step, self._saving = self._saving, None
        with self._told(step):
            self._saver.wait_until_finished()
        self._complete.add(step)
        readable = sorted(self._complete - self._unreadable)
        oldest_kept = readable[-self._keep :][0]
        old = sorted(step for step in self._complete if step < oldest_kept)
        self._complete.difference_update(old)
        if old and self._cluster.leader:
            if self._retiring:
                self._retiring.join()
            self._retiring = threading.Thread(target=self._retire, args=(old,), name="retire", daemon=True)
            self._retiring.start()

    @contextmanager
    def _told(self, step: int) -> Iterator[None]:
        """Turns what a save may raise, a full disk or a refusal, into one error that says what to do."""
        try:
            yield
        except jax.errors.JaxRuntimeError:
            raise  # another worker was lost
        except Exception as error:  # orbax and tensorstore raise what they like
            safe = f"checkpoint {self.newest} is safe" if self.newest else "there is no checkpoint before it"
            raise StoreError(
                f"{self._root / str(step)}: can't be saved: {first_line(error)}\n    fix: make room for"
                f" {self._size_gb:.3g} GB, or let the account write there, and start the run again; {safe}"
            ) from error

    def _retire(self, steps: Sequence[int]) -> None:
        """A step of many hosts is a thousand objects: training doesn't stand still for them."""
        for step in steps:
            try:
                self._remove(step)
            except StoreError as error:  # costs room, not correctness
                print(f"step {step} stays in storage: {first_line(error)}", flush=True)

    def _remove(self, step: int) -> None:
        remove_step(self._store, step)


def remove_step(store: Store, step: int) -> None:
    """The marker goes first: what a crash leaves behind is incomplete, and known as such."""
    store.delete(f"{FOLDER}/{step}/{MARKER}")
    names = store.list(f"{FOLDER}/{step}/")
    with ThreadPoolExecutor(_REMOVED_AT_ONCE, "remove") as pool:
        list(pool.map(store.delete, names))

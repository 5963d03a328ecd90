"""Checkpoints of a run: saved by all workers, complete once their marker is there.

Orbax picks its commit by the spelling of a path and takes a gcsfuse mount for a disk,
where renaming a folder isn't atomic. So every path gets the marker, `commit_success.txt`,
written after everything else; a step without it doesn't exist.
"""
# mypy: allow-untyped-calls

import logging
import math
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import orbax.checkpoint as ocp  # type: ignore[import-untyped]
from etils import epath  # type: ignore[import-untyped]
from orbax.checkpoint.options import AtomicityMode, AtomicityOptions  # type: ignore[import-untyped]

from workload.errors import OutageError, RunError, StoreError, WorkloadError
from workload.runs import outage
from workload.runs.store import Store
from workload.train.cluster import Cluster, first_line
from workload.train.config import CheckpointConfig

# gcsfs asks, by gRPC and before every call, whether the bucket is hierarchical. It serves either
# kind without knowing, and a bucket reached through a private endpoint may not answer gRPC at all.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

FOLDER = "checkpoints"
MARKER = "commit_success.txt"
_STEP = re.compile(rf"{FOLDER}/(\d+)/(.+)")
_REMOVED_AT_ONCE = 8  # objects; as many connections as the client keeps open, and two to spare
PATIENCE_S = 30.0  # with the save before: then training continues, and saves once that is complete
_ANSWER_S = 5.0  # that training stands still to hear whose the run is
_SMALL_FILES = 8  # of a checkpoint, at most, whose writes may fail one by one
_ASK_AGAIN_S = 1.0  # where there is nothing to do but to save
_BY_MARKER = AtomicityOptions(mode=AtomicityMode.COMMIT_FILE)


def _by_others(record: logging.LogRecord) -> bool:
    if record.name == "asyncio":  # names the task that failed, but of several gathered ones only their error
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.extract_tb(error.__traceback__) if error else []
        where = [record.getMessage(), *(one.filename for one in frames)]
        # OCDBT: of a write that Orbax gave to tensorstore, whose futures name no caller.
        return not any("orbax" in each or "OCDBT" in each for each in where)
    return "orbax" not in record.pathname or not record.exc_info


@cache
def quiet_failures() -> None:
    """A save that fails is told once, by `_told`.

    Orbax logs it several times over, a traceback each; asyncio adds one for each write that was
    under way, and the write one more, from below Python, that the event loop is closed.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_by_others)
    reported = sys.unraisablehook

    def tell(ignored: "sys.UnraisableHookArgs") -> None:
        code = getattr(ignored.object, "cr_code", None)  # of a coroutine
        orbaxs = code is not None and "orbax" in code.co_filename
        if str(ignored.exc_value) != "Event loop is closed" and not orbaxs:
            reported(ignored)

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
    """What a run resumes from.

    Attributes:
        step: updates already done; 0 for a run that has no checkpoint yet.
        state: the state after them; None at 0.
        passed_over: newer steps that couldn't be used, with the reason.
    """

    step: int
    state: Any
    passed_over: tuple[tuple[int, str], ...]


class Checkpoints:
    """Saves in the background, restores the newest complete step.

    A save that fails because storage answers nobody costs nothing yet: a later one holds all that it
    would have. So it is told, and the run resumes; what storage refuses, it refuses the next one too, and
    is an error at once.
    """

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        config: CheckpointConfig,
        guard: Callable[[], None] = lambda: None,
        before_marker: Callable[[int], None] = lambda _: None,
        say: Callable[..., None] = lambda *_, **__: None,
    ):
        """Opens nothing yet.

        Args:
            store: of the run.
            cluster: all workers.
            config: how many to keep, how long to wait.
            guard: raises on worker 0 where the run is another's by now; asked before anything changes.
            before_marker: called with the step on worker 0, in the background, before it is complete;
                again after an `OutageError`.
            say: takes the kind of an event and its details.
        """
        quiet_failures()
        self._store, self._cluster, self._config, self._guard = store, cluster, config, guard
        self._before_marker, self._say = before_marker, say
        self._root = epath.Path(store.url) / FOLDER
        self._in_bucket = store.url.startswith("gs://")
        self._saver = ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=config.timeout_s, post_finalization_callback=self._about_to_commit
            ),
            # What an earlier start left is gone: training doesn't stand still to ask a bucket for it.
            file_options=ocp.options.FileOptions(skip_sync_file_validations=self._in_bucket),
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
        self._failed: set[int] = set()  # begun and never completed by this start
        self._saving: Future[None] | None = None
        self._step = 0  # that is being saved
        self._retiring: threading.Thread | None = None
        self._background = ThreadPoolExecutor(3, "save")
        self._failing_since: float | None = None  # without a save that succeeded
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

    def save(
        self,
        step: int,
        state: Any,
        patience_s: float = PATIENCE_S,
        begins: Callable[[], None] = lambda: None,
    ) -> str:
        """Begins to save; a step that is complete already is left as it is, unless it can't be read.

        Waits for the save before it; what is then too old is retired in the background.

        Args:
            step: after which the state is what it is.
            state: of the run.
            patience_s: with the save before it.
            begins: called once nothing stands in the way.

        Returns:
            Why nothing was begun, so that the run resumes and asks again later; empty where it was.

        Raises:
            TakenError: the run is another start's by now.
            StoreError: storage refuses this save or the one before it, or has taken none for too long.
        """
        if why := self._cluster.agree(self._out) or self._previous(patience_s):
            return why
        if step in self._unreadable or step in self._failed:
            self._cluster.agree(lambda: self._remove(step))
            self._unreadable.discard(step)
            self._failed.discard(step)
            self._complete.discard(step)
        if step in self._complete:
            return ""
        self._forget_failures()
        begins()
        self._begun, self._step = time.monotonic(), step
        outage.try_until(self._begun + self._config.timeout_s)
        self._size_gb = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e9
        try:
            with self._told(step):
                args = ocp.args.StandardSave(state)
                self._saver.save(self._root / str(step), args=args, force=not self._in_bucket)
            self._saving = self._background.submit(self._saver.wait_until_finished)
        except OutageError as error:  # the other workers may have begun
            self._saving = Future()
            self._saving.set_exception(error)
        return ""

    def save_surely(
        self, step: int, state: Any, within_s: float = math.inf, begins: Callable[[], None] = lambda: None
    ) -> bool:
        """Saves until the step is complete, or `within_s` are over; whether it is. Raises as `save` does."""
        give_up = time.monotonic() + within_s
        while True:
            left_s = max(0.0, give_up - time.monotonic())
            if not self.save(step, state, left_s, begins):
                self._previous(max(0.0, give_up - time.monotonic()))
            if step in self._complete:
                return True
            if self._cluster.agree(lambda: time.monotonic() > give_up):
                return False
            time.sleep(_ASK_AGAIN_S)

    def _out(self) -> str:
        """Worker 0's: why storage can't be used now; empty where it can."""
        why = self._store.outage()
        if not why:
            asked = self._background.submit(self._guard)
            try:
                asked.result(_ANSWER_S)
            except OutageError:
                why = self._store.outage() or "nothing"
            except TimeoutError:
                why = self._store.outage() or f"nothing for {_ANSWER_S:g} s"
        if not why:
            return ""
        why = f"storage answers {why}"
        self._bounded(why)
        return why

    def _bounded(self, why: str) -> None:
        """Notes a failure of worker 0's, and ends the run where no save has succeeded for too long."""
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since >= self._config.outage_s:
            newest = f"checkpoint {self.newest}" if self.newest else "the beginning"
            raise OutageError(
                f"{self._root}: no save for {now - self._failing_since:.0f} s: {why}\n"
                "    fix: look at https://status.cloud.google.com and at the network; once storage answers,"
                f" start the run again: it resumes from {newest}. checkpoint.outage_s ="
                f" {self._config.outage_s:g} says how long a run puts up with it"
            )

    def _about_to_commit(self) -> None:
        """Worker 0's, in the background: the last that happens before the marker."""
        give_up = self._begun + self._config.timeout_s
        while True:
            try:
                self._guard()
                self._before_marker(self._step)
                break
            except OutageError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_ASK_AGAIN_S)
        if not self._store.failed_since(self._begun):  # an outage says nothing of what a save takes
            self.save_s = time.monotonic() - self._begun

    def wait(self, within_s: float = math.inf) -> None:
        """Returns once no save is under way, or `within_s` are over, and what is too old is gone.

        Raises:
            TakenError: the run is another start's by now.
            StoreError: storage refuses the save.
        """
        self._cluster.agree(self._out)
        if self._previous(within_s):
            outage.try_until(time.monotonic())  # nobody waits for it any more
        self._cluster.agree(self._retired)  # the others have nothing to remove, and would leave without it

    def _retired(self) -> None:
        if self._retiring and not self._store.outage():
            self._retiring.join()

    def _previous(self, patience_s: float) -> str:
        """Waits for the save under way, if any; returns why it still is."""
        if self._saving is None:
            return ""
        step = self._step
        ended = wait([self._saving], patience_s if patience_s < math.inf else None).done
        if not self._cluster.all_true(bool(ended)):
            return f"the save of step {step} is still under way"
        problem = ""
        saving, self._saving = self._saving, None
        try:
            with self._told(step):
                saving.result()
        except OutageError as error:
            problem = first_line(error)
        failed = self._cluster.dissenters(not problem)
        if failed:
            self._failed.add(step)
            others = f"{self._root / str(step)}: can't be saved by workers {', '.join(map(str, failed))}"
            self._say("save-failed", step=step, reason=problem or others)
            self._cluster.agree(lambda: self._bounded(problem or others))
        else:
            self._failing_since = None
            self._complete.add(step)
        self._begin_to_retire()
        return ""

    def _forget_failures(self) -> None:
        """The next save isn't blamed for those of the one before, which were reported.

        Orbax raises a failure of the arrays first, and keeps those of a checkpoint's small files, each by
        itself, until it is asked again: by the next save.
        """
        for _ in range(_SMALL_FILES):
            try:
                self._saver.wait_until_finished()
            except Exception:  # orbax raises what it likes
                continue
            return

    def _begin_to_retire(self) -> None:
        readable = sorted(self._complete - self._unreadable)
        oldest_kept = next(iter(readable[-self._config.keep :]), 0)
        old = {step for step in self._complete if step < oldest_kept}
        self._complete -= old
        old |= {step for step in self._failed if step < oldest_kept}
        self._failed -= old
        if old and self._cluster.leader:
            if self._retiring:
                self._retiring.join()
            self._retiring = threading.Thread(
                target=self._retire, args=(sorted(old),), name="retire", daemon=True
            )
            self._retiring.start()

    @contextmanager
    def _told(self, step: int) -> Iterator[None]:
        """Turns what a save may raise, a full disk or a refusal, into one error that says what to do."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, WorkloadError):
            raise  # another worker was lost; or it is said already
        except Exception as error:  # orbax and tensorstore raise what they like
            where = self._root / str(step)
            safe = f"checkpoint {self.newest} is safe" if self.newest else "there is no checkpoint before it"
            if answer := outage.transient(error):
                answer = self._store.outage() or answer
                raise OutageError(f"{where}: can't be saved: storage answers {answer}; {safe}") from error
            raise StoreError(
                f"{where}: can't be saved: {first_line(error)}\n    fix: make room for"
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

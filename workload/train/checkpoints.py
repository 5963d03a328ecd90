"""Checkpoints of a run: saved by all workers, complete once their marker exists.

Orbax chooses its commit by the spelling of a path and treats a gcsfuse mount as a disk, where
renaming a folder isn't atomic. So every path gets the marker, `commit_success.txt`, written after
everything else; a step without it is incomplete. `checksums.py` compares a restored step with the saved one.
"""
# mypy: allow-untyped-calls

import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import orbax.checkpoint as ocp  # type: ignore[import-untyped]
from etils import epath  # type: ignore[import-untyped]
from orbax.checkpoint.options import AtomicityMode, AtomicityOptions  # type: ignore[import-untyped]

from workload.errors import OutageError, RunError, StoreError, WorkloadError
from workload.runs import outage
from workload.runs.store import Store
from workload.train import best, checksums
from workload.train.best import Evaluated
from workload.train.cluster import Cluster, first_line
from workload.train.config import CheckpointConfig
from workload.train.stored_steps import FOLDER, list_steps, read_checksums, refuse_lost_markers, remove_step

# gcsfs queries by gRPC before every call if the bucket is hierarchical. It works without knowing, and a
# private endpoint may not serve gRPC.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

_log = logging.getLogger(__name__)

PATIENCE_S = 30.0  # for the previous save; then training continues and saves later
_GUARD_S = 5.0  # pause of training to check the lease
_SMALL_FILES = 8  # most files of a checkpoint whose writes may fail separately
_RETRY_S = 1.0  # between attempts while nothing but a save is left
_BY_MARKER = AtomicityOptions(mode=AtomicityMode.COMMIT_FILE)


def _by_others(record: logging.LogRecord) -> bool:
    if record.name == "asyncio":  # names the failed task, but of gathered ones only their error
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.extract_tb(error.__traceback__) if error else []
        origins = [record.getMessage(), *(frame.filename for frame in frames)]
        # OCDBT: a write of Orbax through tensorstore, whose futures name no caller.
        return not any("orbax" in origin or "OCDBT" in origin for origin in origins)
    return "orbax" not in record.pathname or not record.exc_info


@cache
def quiet_failures() -> None:
    """Suppress duplicate logs of failed saves, which `_errors_of` reports once.

    Orbax logs several tracebacks; asyncio adds another for each write under way, and the write itself
    reports from below Python that the event loop is closed.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_by_others)
    default = sys.unraisablehook

    def report(ignored: "sys.UnraisableHookArgs") -> None:
        code = getattr(ignored.object, "cr_code", None)  # of a coroutine
        of_orbax = code is not None and "orbax" in code.co_filename
        if str(ignored.exc_value) != "Event loop is closed" and not of_orbax:
            default(ignored)

    sys.unraisablehook = report


@dataclass(frozen=True)
class Restored:
    """State that a run resumes from.

    Attributes:
        step: finished updates; 0 without a checkpoint.
        state: the state after them; None at 0.
        passed_over: newer, unusable steps with the reason.
    """

    step: int
    state: Any
    passed_over: tuple[tuple[int, str], ...]


class Checkpoints:
    """Saver in the background, and loader of the newest complete step.

    A save that fails in an outage of storage is reported, and training continues: a later save replaces it.
    A refusal of storage would repeat and is an error at once.
    """

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        config: CheckpointConfig,
        guard: Callable[[], None] = lambda: None,
        before_marker: Callable[[int], None] = lambda _: None,
        report: Callable[..., None] = lambda *_, **__: None,
    ):
        """Create savers and loaders; storage isn't accessed yet.

        Args:
            store: of the run.
            cluster: all workers.
            config: retention and timeouts.
            guard: raises on worker 0 if another start owns the run; called before any change.
            before_marker: called with the step on worker 0, in the background, before it is complete;
                again after an `OutageError`.
            report: receives the kind of an event and its details.
        """
        quiet_failures()
        self._store, self._cluster, self._config, self._guard = store, cluster, config, guard
        self._before_marker, self._report = before_marker, report
        self._root = epath.Path(store.url) / FOLDER
        self._in_bucket = store.url.startswith("gs://")
        self._saver = ocp.AsyncCheckpointer(
            ocp.StandardCheckpointHandler(),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=config.timeout_s, post_finalization_callback=self._about_to_commit
            ),
            # Leftovers of earlier starts are removed already: don't list the bucket again.
            file_options=ocp.options.FileOptions(skip_sync_file_validations=self._in_bucket),
            atomicity_options=_BY_MARKER,
        )
        # A restore mustn't wait for the other workers: a failure of one is reported to all by `_try`.
        worker = cluster.membership.worker
        alone = ocp.options.MultiprocessingOptions(primary_host=worker, active_processes={worker})
        self._loader = ocp.Checkpointer(
            ocp.StandardCheckpointHandler(), multiprocessing_options=alone, atomicity_options=_BY_MARKER
        )
        self._complete: set[int] = set()
        self._unreadable: set[int] = set()  # complete, but not counted among the retained ones
        self._failed: set[int] = set()  # begun but not completed by this start
        self._evaluated: dict[int, Evaluated] = {}  # losses on held-out tokens of steps that were saved
        self._saving: Future[None] | None = None
        self._step = 0  # being saved
        self._compute_sums: checksums.Compute | None = None
        self._checksums: Callable[[], bytes] = bytes  # for the step that is being saved
        self._retiring: threading.Thread | None = None
        self._background = ThreadPoolExecutor(3, "save")
        self._failing_since: float | None = None  # time of the first failure since the last successful save
        self._begun = 0.0
        self._size_gb = 0.0  # of a checkpoint
        self.save_s = 0.0  # duration of the last save until it was complete; 0 before the first

    @property
    def newest(self) -> int | None:
        """Newest readable complete step."""
        return max(self._complete - self._unreadable, default=None)

    @property
    def best(self) -> tuple[int, float] | None:
        """Readable complete step with the lowest loss on held-out tokens, and that loss.

        It may be of the last save as soon as that has ended here; the workers agree on it at the next.
        """
        usable = self._complete - self._unreadable
        if self._saving and self._saving.done() and not self._saving.exception():
            usable |= {self._step}
        step = best.choose({step: loss for step, loss in self._evaluated.items() if step in usable})
        return None if step is None else (step, self._evaluated[step].loss)

    def has_loss(self, step: int) -> bool:
        """Return True if a step was saved with its loss on held-out tokens; the same on all workers."""
        return bool(self._cluster.agree(lambda: {"known": bool(best.read(self._store, [step]))})["known"])

    def add_loss(self, step: int, evaluated: Evaluated) -> None:
        """Store the loss of a step that was saved without."""
        self._evaluated[step] = evaluated
        if self._cluster.leader:
            self._store.write(f"{FOLDER}/{step}/{best.NAME}", evaluated.dump(step))

    def improves(self, evaluated: Evaluated) -> bool:
        """Return True if the loss is lower than those of all steps that are complete or being saved."""
        saved = self._complete | ({self._step} if self._saving else set())
        return best.improves(evaluated, [loss for step, loss in self._evaluated.items() if step in saved])

    def restore(self, abstract_state: Any) -> Restored:
        """Restore the newest complete step that every worker can read.

        Args:
            abstract_state: shapes, dtypes and shardings of the state.

        Raises:
            RunError: complete steps exist, but none is readable. Starting over would hide it.
        """
        self._compute_sums = checksums.compiled(
            abstract_state
        )  # now, for a save mustn't wait for the compiler
        steps = self._cluster.agree(self._tidy)
        self._complete = set(steps["complete"])
        self._evaluated = {step: Evaluated(float.fromhex(loss), of) for step, loss, of in steps["evaluated"]}
        passed_over = [(step, "no marker: it was never completed") for step in steps["incomplete"]]
        for step in sorted(self._complete, reverse=True):
            state: Any = None  # free the previous state: memory holds only one
            state, problem = self._try(step, abstract_state)
            if self._cluster.all_true(not problem):
                problem = self._compare(step, state)
            if self._cluster.all_true(not problem):
                newer = tuple(sorted(entry for entry in passed_over if entry[0] > step))
                return Restored(step, state, newer)
            self._unreadable.add(step)
            passed_over.append((step, problem or "another worker couldn't read it"))
        if self._complete:
            reasons = "; ".join(f"step {step}: {reason}" for step, reason in passed_over)
            fix = "see the reasons; to start over, give the run another --name"
            raise RunError(f"{self._root}: no checkpoint can be read ({reasons})\n    fix: {fix}")
        return Restored(0, None, tuple(passed_over))

    def _tidy(self) -> dict[str, Any]:
        """List the steps with their evaluations, and remove the incomplete ones, which will be saved again.

        Raises:
            HopelessError: all markers are lost, as by a copy that left them out.
        """
        steps = list_steps(self._store)
        if steps.incomplete and not steps.complete:
            refuse_lost_markers(self._store, steps.incomplete)
        for step in steps.incomplete:
            self._remove(step)
        known = best.read(self._store, steps.complete) if self._config.keep_best else {}
        evaluated = [(step, loss.loss.hex(), loss.of) for step, loss in known.items()]
        return {"complete": steps.complete, "incomplete": steps.incomplete, "evaluated": evaluated}

    def _try(self, step: int, abstract_state: Any) -> tuple[Any, str]:
        try:
            restore = ocp.args.StandardRestore(abstract_state)
            return jax.block_until_ready(self._loader.restore(self._root / str(step), args=restore)), ""
        except Exception as error:  # of any type; an older step may be readable
            return None, first_line(error)

    def _compare(self, step: int, state: Any) -> str:
        """Compare a restored state with the saved checksums; return the difference, or an empty string."""
        assert self._compute_sums is not None
        sums = self._compute_sums(state)
        stored, problem = self._cluster.agree(lambda: read_checksums(self._store, step))
        if stored is None and not problem:
            reason = f"no {checksums.NAME}: an earlier version of the trainer saved it"
            self._report("not-compared", step=step, reason=reason)
        return problem or ("" if stored is None else checksums.problem(stored, step, state, sums))

    def save(
        self,
        step: int,
        state: Any,
        patience_s: float = PATIENCE_S,
        begins: Callable[[], None] = lambda: None,
        evaluated: Evaluated | None = None,
    ) -> str:
        """Begin to save; a step that is complete and readable isn't saved again.

        Waits for the previous save; steps that are then too old are retired in the background.

        Args:
            step: finished updates.
            state: after them.
            patience_s: longest wait for the previous save.
            begins: called right before the save begins.
            evaluated: the state's loss on held-out tokens, if it is known.

        Returns:
            The reason for a delay, after which the caller retries; empty if the save began.

        Raises:
            TakenError: another start owns the run.
            StoreError: storage refuses this save or the previous one, or has failed for too long.
        """
        if delay := self._cluster.agree(self._unavailable) or self._previous(patience_s):
            return delay
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
        if evaluated:
            self._evaluated[step] = evaluated
        outage.try_until(self._begun + self._config.timeout_s)
        self._size_gb = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e9
        self._compute_sums = self._compute_sums or checksums.compiled(state)
        abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        self._checksums = partial(checksums.dump, step, abstract, self._compute_sums(state))
        try:
            with self._errors_of(step):
                args = ocp.args.StandardSave(state)
                self._saver.save(self._root / str(step), args=args, force=not self._in_bucket)
            self._saving = self._background.submit(self._saver.wait_until_finished)
        except OutageError as error:  # the other workers may have begun
            self._saving = Future()
            self._saving.set_exception(error)
        return ""

    def save_surely(
        self,
        step: int,
        state: Any,
        within_s: float = math.inf,
        begins: Callable[[], None] = lambda: None,
        evaluated: Evaluated | None = None,
    ) -> bool:
        """Retry until the step is complete, or return False after `within_s`. Raises as `save`."""
        give_up = time.monotonic() + within_s
        while True:
            remaining_s = max(0.0, give_up - time.monotonic())
            if not self.save(step, state, remaining_s, begins, evaluated):
                self._previous(max(0.0, give_up - time.monotonic()))
            if step in self._complete:
                return True
            if self._cluster.agree(lambda: time.monotonic() > give_up):
                return False
            time.sleep(_RETRY_S)

    def _unavailable(self) -> str:
        """Return the reason on worker 0 why storage is unavailable; empty if it is available."""
        answer = self._store.outage()
        if not answer:
            guard = self._background.submit(self._guard)
            try:
                guard.result(_GUARD_S)
            except OutageError:
                answer = self._store.outage() or "nothing"
            except TimeoutError:
                answer = self._store.outage() or f"nothing for {_GUARD_S:g} s"
        if not answer:
            return ""
        reason = f"storage answers {answer}"
        self._limit_outage(reason)
        return reason

    def _limit_outage(self, reason: str) -> None:
        """Record a failure on worker 0; raise if no save has succeeded for `checkpoint.outage_s`."""
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since >= self._config.outage_s:
            newest = f"checkpoint {self.newest}" if self.newest else "the beginning"
            raise OutageError(
                f"{self._root}: no save for {now - self._failing_since:.0f} s: {reason}\n"
                "    fix: check https://status.cloud.google.com and the network; once storage responds,"
                f" restart the run: it resumes from {newest}. The limit is checkpoint.outage_s ="
                f" {self._config.outage_s:g}"
            )

    def _about_to_commit(self) -> None:
        """Check the lease, store losses and checksums: on worker 0, in the background, before the marker."""
        give_up = self._begun + self._config.timeout_s
        while True:
            try:
                self._guard()
                self._before_marker(self._step)
                folder, evaluated = f"{FOLDER}/{self._step}", self._evaluated.get(self._step)
                if evaluated:
                    self._store.write(f"{folder}/{best.NAME}", evaluated.dump(self._step))
                self._store.write(f"{folder}/{checksums.NAME}", self._checksums())
                break
            except OutageError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_RETRY_S)
        if not self._store.failed_since(self._begun):  # an outage distorts the duration
            self.save_s = time.monotonic() - self._begun

    def wait(self, within_s: float = math.inf) -> None:
        """Wait until no save is under way or `within_s` are over, and old steps are removed.

        Raises:
            TakenError: another start owns the run.
            StoreError: storage refuses the save.
        """
        self._cluster.agree(self._unavailable)
        if self._previous(within_s):
            outage.try_until(time.monotonic())  # stop its retries
        self._cluster.agree(self._join_retiring)  # the other workers wait for worker 0's removals

    def _join_retiring(self) -> None:
        if self._retiring and not self._store.outage():
            self._retiring.join()

    def _previous(self, patience_s: float) -> str:
        """Wait for the save under way, if any; return a reason if it still is."""
        if self._saving is None:
            return ""
        step = self._step
        ended = wait([self._saving], patience_s if patience_s < math.inf else None).done
        if not self._cluster.all_true(bool(ended)):
            return f"the save of step {step} is still under way"
        problem = ""
        saving, self._saving = self._saving, None
        try:
            with self._errors_of(step):
                saving.result()
        except OutageError as error:
            problem = first_line(error)
        failed = self._cluster.dissenters(not problem)
        if failed:
            self._failed.add(step)
            elsewhere = f"{self._root / str(step)}: can't be saved by workers {', '.join(map(str, failed))}"
            self._report("save-failed", step=step, reason=problem or elsewhere)
            self._cluster.agree(lambda: self._limit_outage(problem or elsewhere))
        else:
            self._failing_since = None
            self._complete.add(step)
        self._begin_to_retire()
        return ""

    def _forget_failures(self) -> None:
        """Clear reported failures of the previous save from Orbax.

        Orbax raises a failure of the arrays first, and those of a checkpoint's small files one by one at
        later calls, which would fail the next save.
        """
        for _ in range(_SMALL_FILES):
            try:
                self._saver.wait_until_finished()
            except Exception:  # orbax raises any type
                continue
            return

    def _begin_to_retire(self) -> None:
        readable = sorted(self._complete - self._unreadable)
        oldest_kept = next(iter(readable[-self._config.keep :]), 0)
        old = {step for step in self._complete if step < oldest_kept}
        if self._config.keep_best and self.best:
            old.discard(self.best[0])
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
    def _errors_of(self, step: int) -> Iterator[None]:
        """Translate the exceptions of a save into a StoreError or OutageError with a fix."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, WorkloadError):
            raise  # another worker was lost; or already translated
        except Exception as error:  # orbax and tensorstore raise any type
            where = self._root / str(step)
            safe = f"checkpoint {self.newest} is safe" if self.newest else "no checkpoint was saved before"
            if answer := outage.transient(error):
                answer = self._store.outage() or answer
                raise OutageError(f"{where}: can't be saved: storage answers {answer}; {safe}") from error
            raise StoreError(
                f"{where}: can't be saved: {first_line(error)}\n    fix: make room for"
                f" {self._size_gb:.3g} GB, or let the account write there, and restart the run; {safe}"
            ) from error

    def _retire(self, steps: Sequence[int]) -> None:
        """Remove old steps in the background: a step of many hosts has a thousand objects."""
        for step in steps:
            try:
                self._remove(step)
            except StoreError as error:  # costs space, not correctness
                _log.warning("step %s not removed: %s", step, first_line(error))

    def _remove(self, step: int) -> None:
        remove_step(self._store, step)

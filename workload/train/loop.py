"""Train a model on token files, on all workers, as a pure function of (seed, step).

    workload train tiny.toml --name first --dir /tmp/runs

Killed at any moment and restarted on the same mesh, a run ends with bit-identical losses, parameters
and optimizer state: the data's order depends on the seed and the step, the arithmetic on the program and
the mesh, and steps after the newest complete checkpoint are repeated. On another mesh it continues with
other rounding.
"""
# mypy: allow-untyped-calls

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import Array

from settings_schema import foreign
from workload import folders
from workload.data.conversations import open_folder
from workload.data.loader import Loader
from workload.data.mixture import Mixture
from workload.data.tokens import Examples, Folder
from workload.errors import ConfigError, HopelessError, Problem, StoreError, TakenError
from workload.host.heartbeat import Heartbeat
from workload.runs.errors import MissingObjectError
from workload.runs.goodput import GoodputRecorder
from workload.runs.lease import Lease
from workload.runs.step_log import StepLog, read_losses
from workload.runs.store import Store
from workload.train import base, checksums
from workload.train.best import Evaluated
from workload.train.checkpoints import PATIENCE_S, Checkpoints, Restored
from workload.train.cluster import Cluster
from workload.train.config import Config
from workload.train.durable import DurableCopies
from workload.train.evaluation import Evaluation
from workload.train.fitting import check, resolve
from workload.train.interval import Interval
from workload.train.preemption import Preemption
from workload.train.profile import Profiler
from workload.train.progress import Progress
from workload.train.record import RunRecord
from workload.train.sharding import make_mesh
from workload.train.steps import make_step
from workload.train.update import State

_ASSUMED_BYTES_PER_S = 1e9  # of a host's writes, until a save was timed


@dataclass(frozen=True)
class Outcome:
    """End of a start: state `done` or `preempted`, last step and its loss."""

    state: str
    step: int
    loss: float | None


class Run:
    """Start of a run on this worker."""

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        dataset: Examples,
        store: Store,
        lease: Lease,
        step_log: StepLog | None,
        goodput: GoodputRecorder,
        heartbeat: Heartbeat,
        durable: DurableCopies,
        held_out: Examples | None = None,
        extend: bool = False,
    ):
        if base.is_best(config.train.init_from):
            name = cluster.agree(lambda: base.pinned(config.train.init_from, store))
            config = replace(config, train=replace(config.train, init_from=name))
        config = resolve(config, dataset)
        self._config, self._cluster, self._dataset, self._store = config, cluster, dataset, store
        self._lease, self._step_log, self._goodput = lease, step_log, goodput  # step log: worker 0 only
        self._heartbeat, self._durable = heartbeat, durable
        mesh = make_mesh(config.mesh, cluster.slices)
        check(config, mesh.size, jax.default_backend(), len(dataset))
        self._step = make_step(config, mesh, jax.default_backend(), len(cluster.slices))
        flush = step_log.flush if step_log else lambda _: None
        self._checkpoints = Checkpoints(
            durable.steps, cluster, config.checkpoint, lease.check, flush, self._event
        )
        if step_log and config.checkpoint.keep_best:
            step_log.best = lambda: self._checkpoints.best
        self._put_off: int | None = None  # the step whose save was postponed
        self._record = RunRecord(config, self._step, dataset, cluster, extend)
        self._loader = Loader(
            dataset, config.train.batch_size, config.train.seed, self._step.by_example, list(self._step.batch)
        )
        self._evaluation = Evaluation(config, self._step, dataset, held_out) if held_out else None
        self._metrics: dict[int, dict[str, Array]] = {}  # on the devices, not fetched yet
        self._last_loss: float | None = None
        self._newest: int | None = None  # checkpoint of the last heartbeat
        self._progress = Progress(
            config, mesh.size, cluster.devices[0].device_kind, parameters=self._step.parameters
        )

    def go(self) -> Outcome:
        """Restore or initialize, train to the end or to a preemption, save a checkpoint.

        Raises:
            ConfigError: the batch doesn't divide over the devices.
            WeightsError: `train.init_from` holds no weights of this model.
            HopelessError: storage holds another run of this name, or the loss isn't finite.
            TakenError: another start trains this run.
            RunError: no checkpoint is readable.
            StoreError: storage can't be written, or is full.
        """
        config, goodput = self._config, self._goodput
        self._cluster.agree(self._lease.take)
        new_mesh = self._record.settle(self._store)
        mesh = self._step.mesh
        self._event(
            "start",
            workers=self._cluster.membership.workers,
            devices=mesh.size,
            mesh=dict(mesh.shape),
            attention=f"{self._step.attention}: {self._step.attention_reason}",
            documents_begin_with=list(self._dataset.manifest.begin_of_document),
            **self._step.placement,
        )
        observe, worker = config.observe, self._cluster.membership.worker
        last = observe.profile_from + observe.profile_steps - 1
        # Install the SIGUSR1 handler before the slow parts: the default action terminates.
        profiler = Profiler(self._store, worker, observe.profile_from, last)
        with goodput.doing("restore"):
            self._cluster.agree(self._durable.begin)
            restored = self._checkpoints.restore(self._step.state)
            if restored.state is None:
                restored = replace(restored, step=self._step.begins_at)
            self._begin(restored, new_mesh)
            self._step.prepare()
            state = restored.state or self._step.first_state()
        with goodput.doing("compile"):
            if self._cluster.leader:
                print("compiling the step; it is cached for later starts …", flush=True)
            update = self._step.compile()
        preemption = Preemption(self._cluster.membership.workers)
        self._log_notice_plan()
        interval = Interval(config.checkpoint, self._cluster, restored.step)
        step, stop = restored.step, False
        # A notice came before the evaluation.
        lacking = (
            restored.state is not None and self._evaluates(step) and not self._checkpoints.has_loss(step)
        )
        if lacking and (evaluated := self._evaluate(step, state)):
            self._checkpoints.add_loss(step, evaluated)
        while step < config.train.steps and not stop:
            step += 1
            with goodput.doing("data"):
                batch = self._loader.batch(step)
            profiler.before(step)
            with goodput.doing("step"):
                state, self._metrics[step] = update(state, batch)
                self._report(step - 1)  # the previous step, so that the devices never wait for the host
            profiler.after(step, self._metrics.get(step))
            last = step == config.train.steps
            evaluated = None
            if last or not preemption.reached():  # a notice leaves no time for an evaluation
                evaluated = self._evaluate(step, state, (lambda: False) if last else preemption.reached)
            stop = preemption.stops
            better = config.checkpoint.keep_best and evaluated and self._checkpoints.improves(evaluated)
            due = interval.due(step)
            # The last step must be saved; a stop saves if the notice is long enough; else by schedule.
            if last:
                self._save(step, state, interval, evaluated, math.inf)
            elif stop:
                if self._saves_on_notice():
                    self._save(step, state, interval, evaluated, config.checkpoint.notice_s)
            elif due or better or self._put_off is not None:
                self._save(step, state, interval, evaluated)
        with goodput.doing("save"):
            self._checkpoints.wait(max(config.checkpoint.notice_s, PATIENCE_S) if stop else math.inf)
        self._loader.close()
        profiler.close()
        if step < config.train.steps:
            saved = self._checkpoints.newest or self._begun
            self._event(preemption.event, step=saved, lost_steps=step - saved)
            return Outcome("preempted", saved, self._last_loss)
        with goodput.doing("save"):
            self._cluster.agree(lambda: self._durable.end(step))
        done_again = step > restored.step
        self._finish(step, state, again=done_again and (new_mesh or not config.observe.strict))
        return Outcome("done", step, self._last_loss)

    def _evaluates(self, step: int) -> bool:
        """Return True every `observe.eval_every` steps and after the last."""
        every, last = self._config.observe.eval_every, self._config.train.steps
        return self._evaluation is not None and (step % every == 0 or step == last)

    def _evaluate(
        self, step: int, state: State, stops: Callable[[], bool] = lambda: False
    ) -> Evaluated | None:
        """Evaluate where it is due, unless `stops` returns True meanwhile."""
        if self._evaluation is None or not self._evaluates(step):
            return None
        with self._goodput.doing("eval"):
            evaluated = self._evaluation.loss(state["params"], stops)
        if self._step_log and evaluated:
            self._step_log.evaluated(step, evaluated.loss)
        return evaluated

    def _begin(self, restored: Restored, new_mesh: bool) -> None:
        for step, reason in restored.passed_over:
            self._event("passed-over", step=step, reason=reason)
        self._begun, train = restored.step, self._config.train
        if restored.state is not None:
            self._event("restore", step=restored.step)
        elif train.init_from:
            forked = {"taken": train.init_with, "step": restored.step, "changed": self._record.forked}
            self._event(
                "weights", folder=train.init_from, **(forked if train.init_from.startswith("run:") else {})
            )
        if new_mesh:
            note = "mesh, chip, compiler, flags or remat changed: results differ by rounding from here on"
            self._event("moved", step=restored.step, note=note)
        if self._step_log:
            other_schedule = restored.step < self._record.extended_from
            self._step_log.begin(restored.step, forget=new_mesh or other_schedule)
            if new_mesh:  # after deleting the old losses, which a kill in between would keep
                self._record.write(self._store)
        self._goodput.begin(restored.step)
        self._progress.begin(restored.step)
        self._newest = self._checkpoints.newest
        self._heartbeat.report(samples=restored.step, of_samples=self._config.train.steps)
        self._heartbeat.saved()

    def _notice_save_s(self) -> tuple[float, str]:
        """Return the seconds of a save on notice and their origin, the same on all workers."""
        if self._checkpoints.save_s:
            return self._checkpoints.save_s, "measured on the last save"
        workers = self._cluster.membership.workers
        return self._step.state_bytes / workers / _ASSUMED_BYTES_PER_S, "assumed: 1 GB/s a host"

    def _log_notice_plan(self) -> None:
        seconds, reason = self._notice_save_s()
        saves = seconds <= self._config.checkpoint.notice_s
        then = "saves" if saves else "relies on the last save"
        self._event("notice-plan", on_notice=then, save_s=round(seconds, 1), reason=reason)

    def _saves_on_notice(self) -> bool:
        """Return True if a save fits into the notice; worker 0 decides for all."""

        def decide() -> dict[str, Any]:
            seconds, reason = self._notice_save_s()
            return {"saves": seconds <= self._config.checkpoint.notice_s, "s": seconds, "reason": reason}

        decided = self._cluster.agree(decide)
        if not decided["saves"]:
            self._event("notice-too-short", save_s=round(decided["s"], 1), reason=decided["reason"])
        return bool(decided["saves"])

    def _report(self, step: int) -> None:
        """Fetch the metrics of a step, once, and publish them.

        Raises:
            HopelessError: the loss or the gradient isn't finite, or no target counts.
        """
        if step not in self._metrics:
            return
        metrics = {name: float(value) for name, value in self._metrics.pop(step).items()}
        loss, norm = metrics["loss"], metrics["gradient_norm"]
        if not metrics["tokens"]:
            raise HopelessError(
                f"step {step}: no target counts: each token of its examples ends a document\n"
                "    fix: raise train.batch_size or data.sequence_length, or prepare longer documents"
            )
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._event("loss-not-finite", step=step, loss=str(loss), gradient_norm=str(norm))
            raise self._diverged(step, loss, norm)
        self._last_loss = loss
        self._goodput.did(step)
        self._heartbeat.report(samples=step, loss=f"{loss:.4f}", goodput=f"{self._goodput.share:.3f}")
        self._heartbeat.measure(
            loss=loss, goodput=self._goodput.share, data_stall=self._goodput.share_of("data")
        )
        if self._checkpoints.newest != self._newest:
            self._newest = self._checkpoints.newest
            self._heartbeat.saved()
        if self._step_log:
            numbers = self._progress.did(step, metrics)
            if "step_s" in numbers:
                self._heartbeat.measure(step_s=numbers["step_s"])
            self._step_log.loss(step, loss, numbers)
            self._step_log.goodput(self._goodput)

    def _diverged(self, step: int, loss: float, norm: float) -> HopelessError:
        """Finish the save under way and describe the divergence; the diverged state isn't saved."""
        with suppress(StoreError, TakenError):  # report the divergence, not the storage error
            self._checkpoints.wait(PATIENCE_S)
        good = self._checkpoints.newest
        last = f"checkpoint {good} is the last good one" if good else "no checkpoint was saved before"
        return HopelessError(
            f"step {step}: loss {loss}, gradient norm {norm}: not finite; {last}\n"
            "    fix: lower optimizer.learning_rate or warm up longer; check the batch of this step."
            " A restart with these settings fails again: choose another --name"
        )

    def _save(
        self, step: int, state: State, interval: Interval, evaluated: Evaluated | None, within_s: float = 0.0
    ) -> None:
        """Save in the background or, given `within_s`, until it is complete or that time is over.

        Losses are stored before the marker: a complete checkpoint implies them.
        """
        put_off = self._put_off is not None
        if not put_off:
            with self._goodput.doing("step"):
                self._report(step)
        requested = time.monotonic()

        def begins() -> None:
            if put_off:
                with self._goodput.doing("step"):
                    self._report(step)
            self._event("save", step=step)

        with self._goodput.doing("save"):
            if within_s:
                self._checkpoints.save_surely(step, state, within_s, begins, evaluated)
                return
            # A postponed save doesn't wait again: training continues and retries after each step.
            patience_s = 0.0 if put_off else PATIENCE_S
            delay = self._checkpoints.save(step, state, patience_s, begins, evaluated)
        if delay and not put_off:
            self._event("save-put-off", step=step, reason=delay)
        self._put_off = (self._put_off or step) if delay else None
        if self._cluster.leader and not delay:
            self._durable.saved(self._checkpoints.newest)
        if delay or put_off:
            return
        stall_s = time.monotonic() - requested  # the devices idle until here
        if reason := interval.saved(step, stall_s, self._checkpoints.save_s):
            self._event("interval", every_steps=interval.every_steps, reason=reason)

    def _finish(self, step: int, state: State, again: bool) -> None:
        """Write the run's end; `again`: replace an earlier end that has other bits."""
        digests = checksums.digests(state)

        def write() -> float:
            loss = read_losses(self._store, self._config.observe.strict)[step]
            final = {"step": step, "loss_hex": loss.hex(), **digests}
            if not again:
                self._compare_end(final)
            best = self._checkpoints.best
            chosen = {"best": best and best[0]} if self._config.checkpoint.keep_best else {}
            self._store.write("final.json", (json.dumps(final | chosen) + "\n").encode())
            return loss

        self._last_loss = float(self._cluster.agree(write))
        self._event("done", step=step)

    def _compare_end(self, final: dict[str, Any]) -> None:
        """Raise if the recorded end of the run differs: the checkpoint has changed since."""
        try:
            was = foreign.parse(self._store.read("final.json"))
        except (MissingObjectError, ValueError):
            return
        known = {key: was[key] for key in was.keys() & final.keys()}  # earlier versions wrote other digests
        if was.get("step") == final["step"] and known != {key: final[key] for key in known}:
            where, step = f"{self._store.url}/final.json", final["step"]
            raise HopelessError(
                f"{where}: differs from checkpoint {step}, which was damaged since the run ended\n"
                "    fix: remove that step's folder, and restart from the checkpoint before"
            )

    def _event(self, kind: str, **details: Any) -> None:
        if self._step_log:
            self._step_log.event(kind, **details)


def open_held_out(config: Config, data_dir: str | None) -> Examples | None:
    """Open the config's held-out token files; None if it names none."""
    path = config.observe.eval_path
    return _opened("observe.eval_path", path, config, data_dir) if path else None


def open_dataset(config: Config, data_dir: str | None) -> Examples:
    """Open the config's token files, below `data_dir` if given.

    Raises:
        ConfigError: `data.loss` doesn't fit them.
        DataError: some are unusable.
    """
    if not config.data.sources:
        dataset: Examples = _opened("data.path", config.data.path, config, data_dir)
    else:
        folders_of = [
            _opened(f"data.sources[{number}].path", source.path, config, data_dir)
            for number, source in enumerate(config.data.sources)
        ]
        dataset = Mixture(folders_of, [source.weight for source in config.data.sources])
    if config.data.loss and not dataset.marked:
        rule = f"must be empty: {dataset.folder} holds documents, of which every token counts"
        fix = "remove it, or prepare conversations with --chat"
        raise ConfigError("config", [Problem("data.loss", repr(config.data.loss), rule, fix)])
    return dataset


def _opened(key: str, path: str, config: Config, data_dir: str | None) -> Folder:
    folder = open_folder(folders.of_setting(key, path, data_dir or ""), config.data.sequence_length)
    if folder.marked and not config.data.loss:
        rule = f"must be given: {key} = {path!r} holds conversations"
        fix = 'loss = "answers" trains on answers alone, "all" on questions too'
        raise ConfigError("config", [Problem("data.loss", "''", rule, fix)])
    return folder

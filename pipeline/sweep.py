"""Sweep of an environment's runs: claim submissions, apply people's requests, advance every run, keep slices.

A run is advanced as far as it goes without waiting. Each action may be repeated, since what it makes is named
after the run: whoever dies between an action and the write of its record is followed by a call that does it
again. Of two calls that advance one run, the second to write leaves it alone.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from infra.errors import InfraError
from infra.google.client import Client, RequestError, or_none
from infra.google.failures import Failure, Kind, classify
from infra.layers.pipeline import access, handoff, paths, price, spark
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings
from pipeline import decide
from pipeline.decide import Action, Batch, End, Limits, Observation, Wait
from pipeline.record import GOOD, Run, Stage
from pipeline.shards import Shards
from pipeline.store import OLDEST_S, ConflictError, Request, Store, Stored, Submission
from pipeline.training import Trainer, TrainingError

CHECK_S = 45.0
"""Time that a call spends on comparing shards; the next one continues."""
SUBMISSIONS_S = 600.0
"""Time between listings of the raw bucket, for lost events: their requests grow with its objects."""
_MOST_STEPS = 20
_LOG = logging.getLogger(__name__)


class Sweep:
    """Runs of one environment, advanced as the function's account."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        trainer: Trainer | None,
        now: Callable[[], float] = time.time,
    ):
        """`trainer`: None without training."""
        desired = settings[PipelineSettings]
        self._settings, self._client, self._trainer, self._now = settings, client, trainer, now
        self.store = Store(client, settings)
        self._limits = Limits(
            settings.environment, desired.code or "", price.of_runs(settings), desired.ttl_minutes * 60.0,
            handoff.trains_by(settings), desired.train_hours,
            lambda message: access.lacking(settings, message),
        )  # fmt: skip
        self._until_s = 0.0
        self._listed_s = -math.inf
        self._faults: list[str] = []
        self._unread: set[str] = set()

    def submitted(self, bucket: str, name: str, generation: str) -> dict[str, str]:
        """Claim the run of an object of the raw bucket, and advance it; return the outcome."""
        submission = self.store.submission(name, generation) if bucket == self.store.raw else None
        if submission is None:
            return {"outcome": "ignored"}
        self._until_s = self._now() + CHECK_S
        stored = self._claim(submission)
        if stored is None:
            return {"outcome": "duplicate", "run": submission.run}
        return {"outcome": self._advance(stored).run.outcome, "run": submission.run}

    def sweep(self) -> list[str]:
        """Advance every run; return the faults, each of which stopped nothing else."""
        self._faults, self._until_s = [], self._now() + CHECK_S
        listed = self.store.records(unfinished=True)
        self._report_unread(listed.unread)
        runs = {stored.run.run: stored for stored in listed.runs}
        if self._now() - self._listed_s >= SUBMISSIONS_S:
            with self._alone("submissions"):
                oldest = decide.rfc3339(self._now() - OLDEST_S)
                for submission in self.store.submissions():
                    known = submission.run in listed.names or submission.at < oldest
                    if not known and (stored := self._claim(submission)):
                        runs[submission.run] = stored
                self._listed_s = self._now()
        with self._alone("requests"):
            requests, unread = self.store.requests()
            self._report_unread(unread)
            for request in requests:
                with self._alone(request.run):
                    if stored := self._apply(request):
                        runs[request.run] = stored
        for name, stored in sorted(runs.items()):
            with self._alone(name):
                self._advance(stored)
        if self._trainer:
            with self._alone("slices"):
                self._trainer.keep(lambda text: _LOG.info("%s", text))
        return self._faults

    def _claim(self, submission: Submission) -> Stored | None:
        """Create the record of a run; None if there is one."""
        now_s = self._now()
        run = Run(
            submission.run, submission.raw, decide.rfc3339(now_s), now_s, code=self._limits.code,
            most_usd=self._limits.prices.most_usd,
        )  # fmt: skip
        try:
            stored = self.store.write(run, 0)
        except ConflictError:
            return None
        _line(logging.INFO, "pipeline_begin", run, raw=run.raw)
        return stored

    def _apply(self, request: Request) -> Stored | None:
        """Apply a person's request, and delete it; return the record that it changed."""
        stored = self.store.read(request.run)
        run = stored and decide.requested(stored.run, request.action, request.by, request.generation)
        if stored and run:
            try:
                stored = self.store.write(run, stored.generation)
            except ConflictError:
                return None  # applied at the next sweep
        self.store.drop(request)
        return stored if run else None

    def _advance(self, stored: Stored) -> Stored:
        """Advance a run until it waits, has ended, or another call has written its record."""
        for _ in range(_MOST_STEPS):
            if not stored.run.running:
                break
            run, goes_on = self._next(stored.run)
            if run != stored.run:
                try:
                    stored = self.store.write(run, stored.generation)
                except ConflictError:
                    self._end_unrecorded(stored.run, run)
                    break
                if not run.running:
                    level = logging.INFO if run.outcome in GOOD else logging.ERROR
                    _line(level, "pipeline_run", run, stage=run.stage, outcome=run.outcome, why=run.why)
            if not goes_on:
                break
        return stored

    def _end_unrecorded(self, before: Run, after: Run) -> None:
        """End what a call has made after another one had ended the run: no record names it."""
        stored = self.store.read(after.run)
        if stored is not None and stored.run.running:
            return
        if after.batch != before.batch:
            self._cancel_batch(after)
        if after.training != before.training and self._trainer:
            self._trainer.end(after, "its run has ended")

    def _next(self, run: Run) -> tuple[Run, bool]:
        """Take the next action of a run; return its record, and whether to decide again at once."""
        observed = Observation()
        try:
            observed = self._observed(run)
            action = decide.decide(run, observed, self._limits, self._batch_id(run), self._now())
            result: tuple[Run, bool] | Action = self._act(run, action)
        except TrainingError as error:
            result = End(error.outcome, str(error))
        except InfraError as error:
            result = decide.refused(run, _failure(error), self._now())
        if isinstance(result, Wait):
            why = _with_grant(self._settings, result.why) if result.stuck else result.why
            if result.stuck and why != run.why:
                _line(logging.ERROR, "pipeline_stuck", run, stage=run.stage, why=why)
            return replace(run, why=why, failing_s=result.failing_s), False
        if isinstance(result, End):
            self._report_batch(run, observed)
            return decide.ended(run, result, self._limits, self._now()), False
        assert isinstance(result, tuple), "nothing else is left"
        after, goes_on = result
        return replace(after, why="", failing_s=0.0), goes_on

    def _report_batch(self, run: Run, observed: Observation) -> None:
        """Log that a run ends with a batch that failed or was ended."""
        if (batch := observed.batch) and batch.state in ("FAILED", "CANCELLED"):
            _line(logging.WARNING, "pipeline_batch", run, batch=run.batch, state=batch.state)

    def _observed(self, run: Run) -> Observation:
        """Observe what the stage of a run depends on."""
        if run.stage is Stage.PREPROCESS and run.bytes:
            batch = self._batch(run)
            look = batch is None or batch.state == "SUCCEEDED"
            return Observation(batch, self.store.ready(run.run) if look else "")
        if run.stage is Stage.TRAIN and self._trainer and run.train in ("", self._limits.train):
            return Observation(training=self._trainer.look(run))
        return Observation()

    def _act(self, run: Run, action: Action) -> tuple[Run, bool] | Wait | End:
        """Take an action; return the record after it and whether to decide again at once."""
        match action:
            case Wait() | End():
                return action
            case decide.Keep(changes):
                return replace(run, **changes), True
            case decide.Measure():
                folder = run.raw.removeprefix(f"gs://{self.store.raw}/")
                return decide.measured(run, *self.store.measured(folder), self._limits), True
            case decide.CreateBatch(id_):
                self._create_batch(run, id_)
                return replace(run, batch=id_, code=self._limits.code), True
            case decide.CancelBatch():
                self._cancel_batch(run)
                return run, False
            case decide.Check(start):
                return self._check(run, start)
        assert self._trainer is not None, "there is no training without"
        if isinstance(action, decide.EndTraining):
            self._trainer.end(run, action.why)
            return run, False
        self._trainer.start(run)
        description = self._trainer.described(run)
        begun = replace(
            run, train=self._limits.train, training=description.training, ended_by=description.ended_by,
            training_began_s=self._now(),
        )  # fmt: skip
        return begun, False

    def _check(self, run: Run, start: int) -> tuple[Run, bool] | End:
        shards = Shards(self._client, self.store.checkpoints, run.folder)
        result = shards.check(start, run.tokens, lambda: self._now() > self._until_s)
        if result.problems:
            return End("invalid", result.problems)
        return decide.checked(run, result.tokens, result.index, complete=result.complete), result.complete

    # The batch

    def _batch_id(self, run: Run) -> str:
        return decide.batch_id(paths.name(self._settings), run)

    def _url(self, run: Run) -> str:
        return f"{paths.batches(self._settings)}/{self._batch_id(run)}"

    def _create_batch(self, run: Run, id_: str) -> None:
        body = spark.batch(self._settings, run.run, run.raw)
        try:
            self._client.json("POST", paths.batches(self._settings), {"batchId": id_}, body)
        except RequestError as error:
            if error.failure.kind is not Kind.EXISTS:
                raise

    def _cancel_batch(self, run: Run) -> None:
        batch = self._client.json("GET", self._url(run))
        if self._is_labelled(batch):
            self._client.json("POST", f"{paths.DATAPROC}/{batch['operation']}:cancel", body={})

    def _batch(self, run: Run) -> Batch | None:
        answer = or_none(lambda: self._client.json("GET", self._url(run)))
        if answer is None:
            return None
        usage = (answer.get("runtimeInfo") or {}).get("approximateUsage") or {}
        return Batch(
            str(answer.get("state")), str(answer.get("stateMessage") or ""), self._is_labelled(answer),
            _lasted_s(answer),
            float(usage.get("milliDcuSeconds") or 0) / 3_600_000,
            float(usage.get("shuffleStorageGbSeconds") or 0) / 3600,
        )  # fmt: skip

    def _is_labelled(self, batch: dict[str, Any]) -> bool:
        """Return whether a batch has the labels of this environment's pipeline."""
        return paths.labels(self._settings).items() <= (batch.get("labels") or {}).items()

    # Faults

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Report any error, so that it stops nothing else."""
        try:
            yield
        except Exception as error:
            text = f"{what}: {_with_grant(self._settings, _message(error))}"
            expected = isinstance(error, InfraError)
            _LOG.error("%s", text, exc_info=not expected, extra={"fields": {"event": "pipeline_fault"}})
            self._faults.append(text)

    def _report_unread(self, unread: dict[str, str]) -> None:
        """Report objects that can't be read, each once, and leave them alone."""
        for url, why in unread.items():
            self._faults.append(f"{url}: {why}")
            if url not in self._unread:
                self._unread.add(url)
                _LOG.error("left alone: %s: %s", url, why, extra={"fields": {"event": "pipeline_fault"}})


def _failure(error: InfraError) -> Failure:
    """Return the failure of a request, or of the one that an error of the fleet was raised for."""
    if isinstance(error, RequestError):
        return error.failure
    message = str(error).partition("\n")[0]
    cause = error.__context__
    return replace(cause.failure, message=message) if isinstance(cause, RequestError) else classify(message)


def _message(error: Exception) -> str:
    return _failure(error).message if isinstance(error, InfraError) else str(error) or repr(error)


def _with_grant(settings: Settings, message: str) -> str:
    grant = access.lacking(settings, message)
    return f"{message}; it needs {grant}" if grant else message


def _line(level: int, event: str, run: Run, **fields: Any) -> None:
    """Log a line from which alerts are made."""
    _LOG.log(level, "%s %s", event, run.run, extra={"fields": {"event": event, "run": run.run, **fields}})


def _lasted_s(batch: dict[str, Any]) -> float:
    """Return the seconds from a batch's creation to its present state; 0 if unknown."""
    try:
        created, at = (datetime.fromisoformat(str(batch[key])) for key in ("createTime", "stateTime"))
        return (at - created).total_seconds()
    except (KeyError, ValueError, TypeError):
        return 0.0

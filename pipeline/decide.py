"""Decide on a run: the next action, by its record and by the state of its batch and training, without I/O."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from infra.google.failures import Failure, Kind
from infra.layers.pipeline.price import RunPrices
from infra.layers.pipeline.settings import NO_TRAINING
from pipeline.record import CANCELLED, GOOD, MOST_OBJECTS, Run, Stage, Tokens

PATIENCE_S = 900.0
"""Time for which a run without training is tried again while Google is unavailable or throttles."""
_GIB = 1 << 30
_QUOTA = re.compile("quota", re.IGNORECASE)
_REFUSED = re.compile(r"(?i)permission|does not have .* access|not authorized to act as")
_LACKS = re.compile("(?i)lacks|missing|denied|forbidden")
_OUTCOMES = {
    Kind.QUOTA: "quota", Kind.PERMISSION: "permission", Kind.LOGIN: "permission", Kind.RATE: "throttled",
    Kind.EXISTS: "conflict", Kind.TRANSIENT: "unavailable", Kind.UNKNOWN: "unavailable",
    Kind.STOCK_OUT: "unavailable",
}  # fmt: skip
_TRANSIENT = ("throttled", "unavailable")
_RETRIED = (
    *_TRANSIENT, CANCELLED, "conflict", "quota", "permission", "ttl", "too_expensive", "train_hours",
    "refused",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Settings that decisions depend on.

    Attributes:
        environment: its name.
        code: sha256 of the batch's code; empty: not published.
        prices: of the run's parts, with the limit of a run.
        ttl_s: time to live of a batch.
        train: `pipeline:train`.
        train_h: hours after which training is ended.
        lacking: returns the missing grant that a refusal is about; empty: none.
    """

    environment: str
    code: str
    prices: RunPrices
    ttl_s: float
    train: str
    train_h: float
    lacking: Callable[[str], str] = lambda _: ""


@dataclass(frozen=True)
class Batch:
    """A Spark batch.

    Attributes:
        state: such as RUNNING.
        message: reason of its state.
        labelled: it has the labels of this environment's pipeline.
        lasted_s: seconds from its creation to its present state.
        dcu_h: hours of data compute units.
        shuffle_gib_h: hours of GiB of shuffle storage.
    """

    state: str
    message: str = ""
    labelled: bool = True
    lasted_s: float = 0.0
    dcu_h: float = 0.0
    shuffle_gib_h: float = 0.0


class Progress(StrEnum):
    """Progress of training."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # for good
    ENDED = "ended"  # by a command, or gone
    REFUSED = "refused"  # by Google, until a person acts


@dataclass(frozen=True)
class Training:
    """Training as its service reports it.

    Attributes:
        progress: of the program.
        why: reason of its end.
        logs: command that shows its output.
        refusal: kind of the refusal.
        unseen: reason for which its end wouldn't be seen; None: it would.
    """

    progress: Progress
    why: str = ""
    logs: str = ""
    refusal: Kind | None = None
    unseen: Failure | None = None


@dataclass(frozen=True)
class Observation:
    """Observation of a run, as far as its stage needs it.

    Attributes:
        batch: the batch of the run's present retry; None: there is none.
        folder: of complete shards; empty: there is none.
        training: None: not started.
    """

    batch: Batch | None = None
    folder: str = ""
    training: Training | None = None


@dataclass(frozen=True)
class Wait:
    """Leave the run until the next sweep; `failing_s` and `why` are recorded.

    `stuck`: a person has to act.
    """

    why: str = ""
    failing_s: float = 0.0
    stuck: bool = False


@dataclass(frozen=True)
class Measure:
    """Count the objects and bytes of the text, and predict the price."""


@dataclass(frozen=True)
class CreateBatch:
    """Create the batch of this id."""

    id: str


@dataclass(frozen=True)
class CancelBatch:
    """Cancel the batch; its state shows the effect."""


@dataclass(frozen=True)
class Keep:
    """Record these fields, and decide again."""

    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """Compare shards with the manifest from this index on."""

    start: int


@dataclass(frozen=True)
class StartTraining:
    """Start training of this name."""

    name: str


@dataclass(frozen=True)
class EndTraining:
    """End training; its state shows the effect."""

    why: str


@dataclass(frozen=True)
class End:
    """End the run; without `next`, the command follows from the outcome. `spark_usd`: price of its batch."""

    outcome: str
    why: str = ""
    next: str = ""
    spark_usd: float | None = None


Action = Wait | Measure | CreateBatch | CancelBatch | Keep | Check | StartTraining | EndTraining | End


def batch_id(prefix: str, run: Run) -> str:
    """Return the id of the batch of a run's present retry."""
    return f"{prefix}-{run.run}" + (f"-{run.retry}" if run.retry else "")


def decide(run: Run, observed: Observation, limits: Limits, batch: str, now_s: float) -> Action:
    """Return the next action of a run.

    Args:
        run: its record.
        observed: its batch, shards and training.
        limits: of the settings.
        batch: id of the batch of its present retry.
        now_s: the present.
    """
    if not run.running:
        return Wait()
    match run.stage:
        case Stage.PREPROCESS:
            return _preprocess(run, observed, limits, batch)
        case Stage.CHECK:
            return _cancelled(run) if run.cancel else Check(run.checked)
        case Stage.TRAIN:
            return _train(run, observed.training, limits, now_s)


def _preprocess(run: Run, observed: Observation, limits: Limits, id_: str) -> Action:
    if observed.batch is not None:
        return _batch(run, observed.batch, observed.folder, limits, id_)
    if run.cancel:
        return _cancelled(run)
    if not limits.code:
        why = "pipeline:code isn't set: a batch would find no code"
        return End("refused", why, f"tpu pipeline publish {limits.environment}")
    if run.bytes is None:
        return Measure()
    if not run.bytes:
        next_ = f"tpu pipeline run {limits.environment} {run.raw}"
        return End("empty", f"nothing is in {run.raw}", next_)
    if (run.objects or 0) > MOST_OBJECTS:
        return End("refused", f"more than {MOST_OBJECTS:,} objects are in {run.raw}: submit parts of it")
    most = limits.prices.limit_usd
    if most is not None and run.predicted_usd is not None and run.predicted_usd > most:
        predicted = f"predicted: ${run.predicted_usd:,.2f}"
        return End("too_expensive", f"{predicted}, pipeline:maxRunCostUsd allows ${most:,}")
    if observed.folder:  # of an earlier try
        return Keep({"stage": Stage.CHECK, "folder": observed.folder})
    if run.batch:
        return End("refused", f"the batch {run.batch} isn't there any more")
    return CreateBatch(id_)


def _batch(run: Run, batch: Batch, folder: str, limits: Limits, id_: str) -> Action:
    if not batch.labelled:
        return End("conflict", f"a batch {id_} is there already, and isn't the pipeline's")
    spark_usd = limits.prices.spark_usd(batch.dcu_h, batch.shuffle_gib_h)
    match batch.state:
        case "SUCCEEDED" if folder:
            done = {"stage": Stage.CHECK, "folder": folder, "batch": id_, "spark_usd": spark_usd}
            return Keep(done)
        case "SUCCEEDED":
            return End("failed", "the batch succeeded, and no shards are ready", spark_usd=spark_usd)
        case "FAILED":
            why = batch.message or "the batch failed"
            return End("quota" if _QUOTA.search(why) else "failed", why, spark_usd=spark_usd)
        case "CANCELLED" if batch.lasted_s >= limits.ttl_s:
            return End("ttl", f"the batch ran for longer than {limits.ttl_s:.0f} s", spark_usd=spark_usd)
        case "CANCELLED":
            return replace(_cancelled(run, "somebody cancelled the batch"), spark_usd=spark_usd)
    if run.cancel:
        return CancelBatch()
    return Wait() if run.batch else Keep({"batch": id_})  # created by a call that died before it wrote that


def _train(run: Run, training: Training | None, limits: Limits, now_s: float) -> Action:
    if run.training and run.train != limits.train:
        why = f"pipeline:train is {limits.train} now; {run.training} was started before, and continues"
        why = f"{why}; set it back, or end that: {run.ended_by}"
        return End(CANCELLED, why) if run.cancel else Wait(why, run.failing_s or now_s, stuck=True)
    if limits.train == NO_TRAINING:
        return _cancelled(run) if run.cancel else End("shards")
    if not run.training and not run.cancel:
        return StartTraining(run.training_name)
    late = bool(run.training) and now_s - run.training_began_s >= limits.train_h * 3600
    if training is None:
        if not run.training:
            return _cancelled(run)
        training = Training(Progress.ENDED, "it is gone")
    match training.progress:
        case Progress.DONE:
            return End("trained")
        case Progress.FAILED:
            return End("training_failed", training.why, training.logs)
        case Progress.REFUSED if not run.cancel:
            return End(_OUTCOMES.get(training.refusal or Kind.UNKNOWN, "refused"), training.why)
        case Progress.ENDED if late and not run.cancel:
            return End("train_hours", f"training took longer than {limits.train_h:g} h, and was ended")
        case Progress.ENDED | Progress.REFUSED:
            return _cancelled(run, f"training was ended: {training.why}")
    if run.cancel:
        return EndTraining(f"its run is cancelled by {run.cancel}")
    if late:
        return EndTraining(f"longer than pipeline:trainHours, {limits.train_h:g}")
    return refused(run, training.unseen, now_s) if training.unseen else Wait()


def _cancelled(run: Run, otherwise: str = "") -> End:
    return End(CANCELLED, f"{run.cancel} cancelled the run" if run.cancel else otherwise)


def requested(run: Run, action: str, by: str, request: int) -> Run | None:
    """Return the record of a run after a person's request; None if that changes nothing.

    Args:
        run: its record.
        action: `cancel` or `retry`.
        by: who requested it.
        request: id of the request, which is applied once.
    """
    if run.answered == request:
        return None
    if action == "cancel" and run.running:
        return replace(run, cancel=by, answered=request)
    if action == "retry" and not run.running and run.outcome not in GOOD:
        return replace(run.retried(), answered=request)
    return None


def refused(run: Run, failure: Failure, now_s: float) -> Action:
    """Return the action after a request that failed.

    A passing failure is tried again at each sweep, for a quarter of an hour. A run that trains tries again
    after any failure, since what trains is billed until the run ends it.
    """
    outcome = _OUTCOMES.get(failure.kind, "refused")
    since_s = run.failing_s or now_s
    if run.training:
        why = f"{failure.message}; {run.training} continues; to end it: {run.ended_by}"
        return Wait(why, since_s, stuck=outcome not in _TRANSIENT)
    if outcome in _TRANSIENT and now_s - since_s < PATIENCE_S:
        return Wait(failure.message, since_s)
    return End(outcome, failure.message)


def ended(run: Run, end: End, limits: Limits, now_s: float) -> Run:
    """Return the record of a run that has ended, with its price, the next command, and the missing grant."""
    outcome, why = end.outcome, end.why
    spark_usd = end.spark_usd or run.spark_usd
    if outcome in ("failed", "refused") and _REFUSED.search(why):
        outcome = "permission"
    named = outcome == "permission" or (outcome == "failed" and _LACKS.search(why))
    if named and (grant := limits.lacking(why)):
        outcome, why = "permission", f"{why}; it needs {grant}"
    verb = "retry" if outcome in _RETRIED else "logs"
    next_ = end.next or f"tpu pipeline {verb} {limits.environment} {run.run}"
    training_h = (now_s - run.training_began_s) / 3600 if run.training else 0.0
    training_usd = limits.prices.training_usd(training_h)
    spent = None if training_usd is None or limits.prices.dcu_hour_usd is None else training_usd
    return replace(
        run, outcome=outcome, why=why, next="" if outcome in GOOD else next_, ended=rfc3339(now_s),
        failing_s=0.0, training_usd=training_usd if run.training else None,
        spark_usd=spark_usd, actual_usd=None if spent is None else spent + (spark_usd or 0.0),
    )  # fmt: skip


def measured(run: Run, objects: int, size: int, limits: Limits) -> Run:
    """Return the record with the amount of text, and with its price if that is known."""
    predicted_usd = limits.prices.predicted_usd(size / _GIB)
    return replace(
        run, objects=objects, bytes=size, predicted_usd=predicted_usd, most_usd=limits.prices.most_usd
    )


def checked(run: Run, tokens: Tokens, index: int, *, complete: bool) -> Run:
    """Return the record of a run of which so many shards are as the manifest says."""
    stage = Stage.TRAIN if complete else run.stage
    return replace(run, tokens=tokens, checked=index, stage=stage)


def rfc3339(now_s: float) -> str:
    """Format a time."""
    return datetime.fromtimestamp(now_s, UTC).isoformat().replace("+00:00", "Z")

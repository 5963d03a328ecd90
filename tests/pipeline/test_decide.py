"""Decisions on a run: every outcome, with its reason and next command, without I/O."""

from dataclasses import replace
from typing import Any

import pytest

from infra.google.failures import Failure, Kind, classify
from infra.layers.pipeline.price import RunPrices
from pipeline import decide
from pipeline.decide import (
    Batch,
    CancelBatch,
    Check,
    CreateBatch,
    End,
    EndTraining,
    Keep,
    Limits,
    Measure,
    Observation,
    Progress,
    StartTraining,
    Training,
    Wait,
)
from pipeline.record import Run, Stage

NOW_S = 1_764_000_000.0
PRICES = RunPrices(0.06, 0.0001, 20.0, 500.0, None, 0.1, 0.5)
LIMITS = Limits("dev", "ab" * 32, PRICES, 14_400.0, "fleet", 24.0)
BARE = Run("r17", "gs://raw/corpus/", "2026-11-24T10:00:00Z", NOW_S)
RUN = replace(BARE, objects=2, bytes=1 << 30, predicted_usd=0.6)
CREATED = replace(RUN, batch="tpu-pipeline-r17")
TRAINS = replace(
    CREATED, stage=Stage.TRAIN, folder="tokens/r17/0", train="fleet", training="slice r17",
    ended_by="tpu fleet delete dev --slice r17", training_began_s=NOW_S, spark_usd=1.5,
)  # fmt: skip
READY = "tokens/r17/0123"


def action(run: Run, limits: Limits = LIMITS, now_s: float = NOW_S, **observed: Any) -> decide.Action:
    return decide.decide(run, Observation(**observed), limits, decide.batch_id("tpu-pipeline", run), now_s)


def end(run: Run, limits: Limits = LIMITS, now_s: float = NOW_S, **observed: Any) -> Run:
    result = action(run, limits, now_s, **observed)
    assert isinstance(result, End)
    return decide.ended(run, result, limits, now_s)


def trains(progress: Progress, why: str = "") -> Training:
    return Training(progress, why, "tpu logs dev r17")


@pytest.mark.parametrize(("run", "observed", "expected"), [
    (BARE, {}, Measure()),
    (RUN, {}, CreateBatch("tpu-pipeline-r17")),
    (replace(RUN, retry=2), {}, CreateBatch("tpu-pipeline-r17-2")),
    (RUN, {"folder": READY}, Keep({"stage": Stage.CHECK, "folder": READY})),
    (RUN, {"batch": Batch("PENDING")}, Keep({"batch": "tpu-pipeline-r17"})),
    (CREATED, {"batch": Batch("RUNNING")}, Wait()),
    (CREATED, {"batch": Batch("SUCCEEDED", dcu_h=10.0), "folder": READY},
     Keep({"stage": Stage.CHECK, "folder": READY, "batch": "tpu-pipeline-r17", "spark_usd": 0.6})),
    (replace(CREATED, stage=Stage.CHECK, checked=8), {}, Check(8)),
    (replace(TRAINS, training="", train=""), {}, StartTraining("r17")),
    (replace(TRAINS, training="", train="", restart=1), {}, StartTraining("r17-1")),
    (replace(TRAINS, training="", train=""), {"training": trains(Progress.RUNNING)}, StartTraining("r17")),
    (TRAINS, {"training": trains(Progress.RUNNING)}, Wait()),
    (replace(TRAINS, outcome="trained"), {"training": trains(Progress.RUNNING)}, Wait()),
])  # fmt: skip
def test_a_run_goes_from_stage_to_stage(run: Run, observed: dict[str, Any], expected: decide.Action) -> None:
    assert action(run, **observed) == expected


@pytest.mark.parametrize(("run", "observed", "outcome", "why", "next_"), [
    (replace(RUN, bytes=0), {}, "empty", "nothing is in gs://raw/corpus/",
     "tpu pipeline run dev gs://raw/corpus/"),
    (CREATED, {"batch": Batch("FAILED", "disk full")}, "failed", "disk full", "tpu pipeline logs dev r17"),
    (CREATED, {"batch": Batch("FAILED")}, "failed", "the batch failed", "tpu pipeline logs dev r17"),
    (CREATED, {"batch": Batch("SUCCEEDED")}, "failed", "the batch succeeded, and no shards are ready",
     "tpu pipeline logs dev r17"),
    (CREATED, {"batch": Batch("FAILED", "Insufficient 'CPUS' quota")}, "quota", "Insufficient 'CPUS' quota",
     "tpu pipeline retry dev r17"),
    (CREATED, {"batch": Batch("CANCELLED", lasted_s=14_400.0)}, "ttl",
     "the batch ran for longer than 14400 s", "tpu pipeline retry dev r17"),
    (CREATED, {"batch": Batch("CANCELLED", lasted_s=60.0)}, "cancelled", "somebody cancelled the batch",
     "tpu pipeline retry dev r17"),
    (RUN, {"batch": Batch("RUNNING", labelled=False)}, "conflict",
     "a batch tpu-pipeline-r17 is there already, and isn't the pipeline's", "tpu pipeline retry dev r17"),
    (CREATED, {}, "refused", "the batch tpu-pipeline-r17 isn't there any more", "tpu pipeline retry dev r17"),
    (TRAINS, {"training": trains(Progress.DONE)}, "trained", "", ""),
    (TRAINS, {"training": trains(Progress.FAILED, "no chips on worker 1")}, "training_failed",
     "no chips on worker 1", "tpu logs dev r17"),
    (TRAINS, {"training": trains(Progress.ENDED, "deleted by a command")}, "cancelled",
     "training was ended: deleted by a command", "tpu pipeline retry dev r17"),
    (TRAINS, {}, "cancelled", "training was ended: it is gone", "tpu pipeline retry dev r17"),
])  # fmt: skip
def test_each_end_has_a_name_a_reason_and_a_next_command(
    run: Run, observed: dict[str, Any], outcome: str, why: str, next_: str
) -> None:
    ended = end(run, **observed)
    assert (ended.outcome, ended.why, ended.next) == (outcome, why, next_)
    assert ended.ended == "2025-11-24T16:00:00Z"


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "SUCCEEDED"])
def test_a_batch_that_ended_badly_has_its_price_too(state: str) -> None:
    ended = end(CREATED, batch=Batch(state, dcu_h=10.0))
    assert (ended.spark_usd, ended.actual_usd) == (0.6, 0.6)


def test_without_published_code_nothing_is_measured() -> None:
    ended = end(BARE, replace(LIMITS, code=""))
    assert (ended.outcome, ended.next) == ("refused", "tpu pipeline publish dev")
    assert ended.why.startswith("pipeline:code isn't set")


def test_more_than_the_limit_is_refused_before_a_batch() -> None:
    limits = replace(LIMITS, prices=replace(PRICES, limit_usd=5))
    run = decide.measured(BARE, 3, 10 << 30, limits)
    assert run.predicted_usd == pytest.approx(5.1)
    ended = end(run, limits)
    assert (ended.outcome, ended.why) == (
        "too_expensive",
        "predicted: $5.10, pipeline:maxRunCostUsd allows $5",
    )
    assert ended.next == "tpu pipeline retry dev r17"
    unknown = replace(limits, prices=replace(limits.prices, usd_per_gib=None))
    assert action(decide.measured(BARE, 3, 10 << 30, unknown), unknown) == CreateBatch("tpu-pipeline-r17")


def test_without_training_a_run_ends_with_its_shards() -> None:
    ended = end(replace(TRAINS, training="", train=""), replace(LIMITS, train="none"))
    assert (ended.outcome, ended.next, ended.actual_usd) == ("shards", "", 1.5)


def test_training_that_takes_too_long_is_ended_and_then_the_run() -> None:
    late_s = NOW_S + 24 * 3600
    assert action(TRAINS, now_s=late_s - 1, training=trains(Progress.RUNNING)) == Wait()
    ends = action(TRAINS, now_s=late_s, training=trains(Progress.RUNNING))
    assert ends == EndTraining("longer than pipeline:trainHours, 24")
    ended = end(TRAINS, now_s=late_s + 60, training=trains(Progress.ENDED))
    assert (ended.outcome, ended.next) == ("train_hours", "tpu pipeline retry dev r17")
    assert end(TRAINS, now_s=late_s + 60).outcome == "train_hours", "a job that was deleted is gone"
    assert end(TRAINS, now_s=late_s, training=trains(Progress.DONE)).outcome == "trained"


def test_weeks_of_training_need_no_limit_of_steps() -> None:
    limits = replace(LIMITS, train_h=8760.0)
    weeks_s = NOW_S + 60 * 86400
    assert action(TRAINS, limits, weeks_s, training=trains(Progress.RUNNING)) == Wait()


def test_a_cancellation_ends_what_runs_now() -> None:
    def cancelled(run: Run) -> Run:
        return replace(run, cancel="ann@laptop")

    assert action(cancelled(RUN), batch=Batch("PENDING")) == CancelBatch()
    assert action(cancelled(CREATED), batch=Batch("RUNNING")) == CancelBatch()
    for run, observed in (
        (cancelled(BARE), {}),
        (cancelled(CREATED), {"batch": Batch("CANCELLED", lasted_s=60.0)}),
        (cancelled(replace(CREATED, stage=Stage.CHECK)), {}),
        (cancelled(replace(TRAINS, training="", train="")), {}),
        (cancelled(TRAINS), {"training": trains(Progress.ENDED, "its run is cancelled")}),
        (cancelled(TRAINS), {}),
    ):
        ended = end(run, **observed)
        assert (ended.outcome, ended.why) == ("cancelled", "ann@laptop cancelled the run")
        assert ended.next == "tpu pipeline retry dev r17"
    trained = cancelled(TRAINS)
    assert isinstance(action(trained, training=trains(Progress.RUNNING)), EndTraining)
    assert end(trained, training=trains(Progress.DONE)).outcome == "trained", "it was faster"


def test_training_whose_record_is_missing_is_cancelled_too() -> None:
    """The call that started it died before it wrote that: its slice is billed."""
    run = replace(TRAINS, training="", train="", cancel="ann@laptop")
    assert isinstance(action(run, training=trains(Progress.RUNNING)), EndTraining)


def test_training_of_earlier_settings_is_named_and_left() -> None:
    for limits in (replace(LIMITS, train="none"), replace(LIMITS, train="jobset")):
        waits = action(TRAINS, limits, training=None)
        assert isinstance(waits, Wait)
        assert waits.stuck
        assert "slice r17 was started before, and continues" in waits.why
        assert "set it back, or end that: tpu fleet delete dev --slice r17" in waits.why
        cancelled = end(replace(TRAINS, cancel="ann@laptop"), limits, training=None)
        assert (cancelled.outcome, cancelled.why) == ("cancelled", waits.why)


@pytest.mark.parametrize(("failure", "outcome"), [
    (classify("Permission 'dataproc.batches.create' denied", 403), "permission"),
    (classify("no token", 401), "permission"),
    (classify("Quota exceeded for quota metric 'CPUS'", 403), "quota"),
    (classify("Quota exceeded for quota metric 'CPUS'", 429), "quota"),
    (classify("Already exists: x", 409), "conflict"),
    (classify("Invalid value", 400), "refused"),
    (classify("Not found", 404), "refused"),
    (classify("API has not been used in project 1 before", 403), "refused"),
])  # fmt: skip
def test_a_refusal_is_an_outcome_at_once(failure: Failure, outcome: str) -> None:
    result = decide.refused(RUN, failure, NOW_S)
    assert isinstance(result, End)
    ended = decide.ended(RUN, result, LIMITS, NOW_S)
    assert (ended.outcome, ended.next) == (outcome, "tpu pipeline retry dev r17")


@pytest.mark.parametrize(("failure", "outcome"), [
    (classify("Too many requests", 429), "throttled"),
    (classify("try again", 503), "unavailable"),
    (classify("connection reset"), "unavailable"),
])  # fmt: skip
def test_a_passing_failure_is_an_outcome_after_a_quarter_of_an_hour(failure: Failure, outcome: str) -> None:
    first = decide.refused(RUN, failure, NOW_S)
    assert first == Wait(failure.message, NOW_S)
    failing = replace(RUN, failing_s=NOW_S)
    assert decide.refused(failing, failure, NOW_S + 899) == Wait(failure.message, NOW_S)
    assert decide.refused(failing, failure, NOW_S + 900) == End(outcome, failure.message)
    trains_on = replace(TRAINS, failing_s=NOW_S)
    assert isinstance(decide.refused(trains_on, failure, NOW_S + 86400), Wait), "its slice is billed"


def test_a_refusal_while_training_continues_ends_nothing_and_names_what_would() -> None:
    result = decide.refused(TRAINS, Failure(Kind.PERMISSION, "denied"), NOW_S)
    why = "denied; slice r17 continues; to end it: tpu fleet delete dev --slice r17"
    assert result == Wait(why, NOW_S, stuck=True)


@pytest.mark.parametrize(("outcome", "why", "expected"), [
    ("failed", "spark@p does not have storage.objects.get access", "permission"),
    ("refused", "not authorized to act as service account spark@p", "permission"),
    ("failed", "spark@p lacks the role", "permission"),
    ("failed", "out of memory", "failed"),
    ("permission", "denied", "permission"),
])  # fmt: skip
def test_a_refusal_inside_a_message_names_the_grant(outcome: str, why: str, expected: str) -> None:
    limits = replace(LIMITS, lacking=lambda message: "ROLE on BUCKET" if "p" in message else "")
    ended = decide.ended(RUN, End(outcome, why), limits, NOW_S)
    assert ended.outcome == expected
    assert ("; it needs ROLE on BUCKET" in ended.why) is (expected == "permission" and "p" in why)


def test_the_actual_price_is_known_if_both_parts_are() -> None:
    done = trains(Progress.DONE)
    ended = end(TRAINS, now_s=NOW_S + 7200, training=done)
    assert (ended.training_usd, ended.actual_usd) == (40.0, 41.5)
    unknown = replace(LIMITS, prices=replace(PRICES, training_hour_usd=None))
    ended = end(TRAINS, unknown, NOW_S + 7200, training=done)
    assert (ended.training_usd, ended.actual_usd) == (None, None)
    assert end(replace(CREATED, spark_usd=1.5), unknown, batch=Batch("FAILED")).actual_usd == 1.5


def test_a_retry_keeps_complete_stages_and_names_what_ended_anew() -> None:
    failed = decide.requested(end(CREATED, batch=Batch("FAILED")), "retry", "ann", 5)
    assert failed is not None
    assert (failed.outcome, failed.stage, failed.retry, failed.restart) == ("running", Stage.PREPROCESS, 1, 0)
    assert (failed.batch, failed.bytes, failed.why, failed.next) == ("", None, "", "")
    trained = end(TRAINS, training=trains(Progress.FAILED, "out of memory"))
    again = decide.requested(trained, "retry", "ann", 5)
    assert again is not None
    assert (again.stage, again.folder, again.training_name) == (Stage.TRAIN, TRAINS.folder, "r17-1")
    assert action(again) == StartTraining("r17-1")
    for outcome, restart in (("train_hours", 1), ("cancelled", 1), ("permission", 0), ("unavailable", 0)):
        assert replace(TRAINS, outcome=outcome).retried().restart == restart


@pytest.mark.parametrize(("run", "requested"), [
    (RUN, "retry"), (replace(RUN, outcome="trained"), "retry"), (replace(RUN, outcome="shards"), "retry"),
    (replace(RUN, outcome="failed"), "cancel"), (replace(RUN, outcome="failed", answered=5), "retry"),
])  # fmt: skip
def test_a_request_that_changes_nothing_is_dropped(run: Run, requested: str) -> None:
    assert decide.requested(run, requested, "ann", 5) is None

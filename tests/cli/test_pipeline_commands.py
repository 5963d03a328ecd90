"""`tpu pipeline`: what its commands ask, print and return."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cli import pipeline
from infra.errors import CommandError
from infra.google.client import Client
from infra.layers.pipeline.price import training_hour_usd
from infra.layers.pipeline.settings import PipelineSettings
from pipeline.store import Store
from tests.cli.call import call
from tests.cli.test_pipeline import RUN, google_with, keep, requested, writes
from tests.infra.recording import BASE, parsed
from tests.pipeline.world import CONTROLLERS, RAW, Google, given
from tests.virtual_time import replace_time


@pytest.fixture(name="google")
def _google(monkeypatch: pytest.MonkeyPatch) -> Google:
    google = google_with(
        {**RUN, "outcome": "trained", "stage": "train", "predicted_usd": 1.0, "actual_usd": 1.25,
         "objects": 1, "bytes": 5, "training": "slice r17", "ended": "2026-11-24T11:00:00Z",
         "tokens": {"shards": 2, "tokens": 1000, "manifest": "cd" * 32, "inputs": "ef" * 32}},
    )  # fmt: skip
    client = Client("my-project", google, sleep=lambda _: None)  # type: ignore[arg-type]
    monkeypatch.setattr(pipeline, "Client", lambda _: client)
    monkeypatch.setattr(pipeline, "from_file", lambda _: given())
    return google


def ended(google: Google, monkeypatch: pytest.MonkeyPatch, *changes: Mapping[str, Any] | None) -> None:
    """Have the record of the submitted run be one of these after the other; None: there is none."""
    looks = iter(changes)

    def look(_: float) -> None:
        if (change := next(looks)) is not None:
            run = f"r{google.objects[RAW, 'corpus/_SUBMIT'].generation}"
            keep(google, {**RUN, **change, "run": run})

    replace_time(monkeypatch, "sleep", look)


def test_a_runs_page_has_text_code_shards_training_and_price(
    google: Google, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(pipeline.pipeline, ["status", "dev", "r17"]) == 0
    page = capsys.readouterr().out
    for part in (
        f"gs://{RAW}/corpus/: 1 object, 5 bytes, inputs sha256 {'ef' * 32}", "ab" * 32,
        "2 of 1000 tokens, manifest sha256 " + "cd" * 32,
        "slice r17", "$1.00 predicted for Spark, $1.25 actual, $12.50 at most", "trained, at train",
    ):  # fmt: skip
        assert part in page
    assert call(pipeline.pipeline, ["status", "dev", "r17", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"]["tokens"] == 1000


def test_the_page_of_a_run_that_waits_for_its_batch_has_the_batchs_state(
    google: Google, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(google, RUN)
    google.batches["tpu-pipeline-r17"] = {"state": "PENDING", "stateTime": "2026-11-24T10:01:00Z"}
    assert call(pipeline.pipeline, ["status", "dev", "r17"]) == 0
    assert "batch    tpu-pipeline-r17, PENDING since 2026-11-24T10:01:00Z\n" in capsys.readouterr().out


def test_what_runs_cost_is_a_table(google: Google, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(pipeline.pipeline, ["cost", "dev"]) == 0
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "predicted", "spark", "training", "actual", "most"]
    assert row.split() == ["r17", "1.00", "unknown", "unknown", "1.25", "12.50"]


def test_a_record_that_is_none_is_named_beside_the_others(
    google: Google, capsys: pytest.CaptureFixture[str]
) -> None:
    google.put(CONTROLLERS, "pipeline/r9/run.json", b'{"a":' * 100_000)
    for command in ("status", "cost"):
        assert call(pipeline.pipeline, [command, "dev"]) == 0
        output = capsys.readouterr()
        assert "r17" in output.out
        assert output.err.startswith(f"left out: gs://{CONTROLLERS}/pipeline/r9/run.json: is no JSON")


def test_a_batch_that_could_not_write_differs_from_one_that_printed(
    google: Google, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(pipeline.pipeline, ["logs", "dev", "r17"]) == 1
    assert "that needs roles/dataproc.worker on the project for tpu-pipeline-spark" in capsys.readouterr().out
    google.entries = [{"textPayload": "Spark"}]
    assert call(pipeline.pipeline, ["logs", "dev", "r17"]) == 0
    assert capsys.readouterr().out == "Spark\n"


def test_run_says_the_price_asks_and_follows_to_the_end(
    google: Google, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match="--yes"):
        call(pipeline.pipeline, ["run", "dev", f"gs://{RAW}/corpus/"])
    assert writes(google) == [], "nothing before the answer"
    capsys.readouterr()
    ended(google, monkeypatch, {"outcome": "trained", "stage": "train"})
    assert call(pipeline.pipeline, ["run", "dev", f"gs://{RAW}/corpus/", "--yes"]) == 0
    shown = capsys.readouterr().out
    run = f"r{google.objects[RAW, 'corpus/_SUBMIT'].generation}"
    assert "1 object, 0.00 GiB" in shown
    assert f"submitted as {run}" in shown
    assert f"{run}: trained" in shown


def test_the_most_that_a_run_costs_grows_with_the_hours_of_training(
    google: Google, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    most, fleet = [], {"pipeline__train": "fleet", "pipeline__trainZone": "us-east5-b"}
    hourly = training_hour_usd(given(**fleet))
    assert hourly
    for hours in (1, 3):
        known = given(**fleet, pipeline__trainHours=hours)
        monkeypatch.setattr(pipeline, "from_file", lambda _, known=known: known)
        call(pipeline.pipeline, ["run", "dev", f"gs://{RAW}/corpus/", "--yes", "--detach"])
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("shards")]
        most.append(float(line.rpartition("$")[2].split()[0].replace(",", "")))
    assert most[1] - most[0] == pytest.approx(2 * hourly, abs=0.02)


def test_without_code_nothing_is_submitted(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    known = given()
    uncoded = replace(known[PipelineSettings], code=None)
    without = replace(known, sections={**known.sections, PipelineSettings: uncoded})
    monkeypatch.setattr(pipeline, "from_file", lambda _: without)
    with pytest.raises(
        CommandError, match="batches need published code\n    fix: tpu pipeline publish dev, then"
    ):
        call(pipeline.pipeline, ["run", "dev", f"gs://{RAW}/corpus/", "--yes"])
    assert writes(google) == []


def test_more_than_a_run_may_cost_is_refused_before_it_is_submitted(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "from_file", lambda _: given(pipeline__maxRunCostUsd=100))
    monkeypatch.setattr(Store, "measured", lambda *_: (1, 10 << 50))
    with pytest.raises(CommandError, match=r"predicted: \$[\d,.]+, pipeline:maxRunCostUsd allows \$100"):
        call(pipeline.pipeline, ["run", "dev", f"gs://{RAW}/corpus/", "--yes"])
    assert writes(google) == []


def test_a_cancelled_run_is_one_that_somebody_agreed_to_cancel(
    google: Google, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(google, RUN)
    with pytest.raises(CommandError, match="--yes"):
        call(pipeline.pipeline, ["cancel", "dev", "r17"])
    assert writes(google) == [], "nothing before the answer"
    capsys.readouterr()
    assert call(pipeline.pipeline, ["cancel", "dev", "r17", "--yes"]) == 0
    expected = "r17: cancelled by the next sweep, within 1 min; next: tpu pipeline status dev r17\n"
    assert capsys.readouterr().out.endswith(expected)
    assert requested(google)["action"] == "cancel"
    assert call(pipeline.pipeline, ["status", "dev", "r17"]) == 0
    assert "request  cancel, by " in capsys.readouterr().out


def test_a_retry_says_the_price_asks_and_says_where_to_look(
    google: Google, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(google, {**RUN, "outcome": "quota"})
    with pytest.raises(CommandError, match=r"Resume r17, at preprocess: \$[\d.,]+ at most(?s:.*)--yes"):
        call(pipeline.pipeline, ["retry", "dev", "r17"])
    assert writes(google) == [], "nothing before the answer"
    capsys.readouterr()
    assert call(pipeline.pipeline, ["retry", "dev", "r17", "--yes"]) == 0
    expected = "r17: resumed by the next sweep, within 1 min; next: tpu pipeline status dev r17\n"
    assert capsys.readouterr().out.endswith(expected)
    assert requested(google)["action"] == "retry"


def test_a_run_that_is_followed_fails_where_it_fails_and_says_what_to_do(
    google: Google, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It isn't claimed yet at the first look, and runs at the second."""
    trains = {"stage": "train", "training": "slice r17 (v6e-8, us-east5-b)"}
    ends = {**trains, "outcome": "quota", "why": "no chips", "next": "tpu pipeline retry dev r17"}
    ended(google, monkeypatch, None, trains, trains, ends)
    assert call(pipeline.pipeline, ["run", "dev", f"gs://{RAW}/corpus/", "--yes"]) == 1
    lines = capsys.readouterr().out.splitlines()
    run = f"r{google.objects[RAW, 'corpus/_SUBMIT'].generation}"
    shown = [line for line in lines if line.startswith(f"{run}: ")]
    assert shown == [f"{run}: start", f"{run}: train", f"{run}: quota"]
    for line in ("why      no chips", "next     tpu pipeline retry dev r17",
                 "training slice r17 (v6e-8, us-east5-b)"):  # fmt: skip
        assert line in lines


def test_a_detached_run_is_submitted_and_not_waited_for(
    google: Google, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(pipeline.pipeline, ["run", "dev", f"gs://{RAW}/corpus/", "--yes", "--detach"]) == 0
    run = f"r{google.objects[RAW, 'corpus/_SUBMIT'].generation}"
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"submitted as {run}",
        f"  progress: tpu pipeline status dev {run}",
    ]


def test_submissions_without_a_run_are_waiting_with_the_reason(
    google: Google, capsys: pytest.CaptureFixture[str]
) -> None:
    run = google.submit("other/")
    assert call(pipeline.pipeline, ["status", "dev"]) == 0
    known, other, why = capsys.readouterr().out.splitlines()
    assert (known.split()[0], known.split()[3]) == ("r17", "trained")
    assert (other.split()[0], other.split()[3]) == (run, "waiting")
    assert why.startswith("    neither its event nor the sweep has started it yet; that needs roles/")
    assert call(pipeline.pipeline, ["status", "dev", "--json"]) == 0
    assert [load["run"] for load in json.loads(capsys.readouterr().out)] == ["r17", run]
    assert call(pipeline.pipeline, ["status", "dev", run]) == 0
    assert "waiting" in capsys.readouterr().out
    with pytest.raises(CommandError, match="no run r99"):
        call(pipeline.pipeline, ["status", "dev", "r99"])


def test_a_dry_run_of_publishing_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sends: list[bool] = []

    def publish(_: Any, *, upload: bool) -> int:
        sends.append(upload)
        return 0

    monkeypatch.setattr("infra.publish.pipeline.publish", publish)
    monkeypatch.setattr(pipeline, "from_file", lambda _: given())
    for words in ([], ["--dry-run"]):
        assert call(pipeline.pipeline, ["publish", "dev", *words]) == 0
    assert sends == [True, False]


def test_without_the_layer_there_is_no_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    off = parsed(BASE)
    monkeypatch.setattr(pipeline, "from_file", lambda _: off)
    with pytest.raises(CommandError, match="pipeline"):
        call(pipeline.pipeline, ["status", "dev"])

"""Records of runs: stored and read, within limits, and left alone where they are newer or wrong."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pipeline import record
from pipeline.record import NewerError, Run, Stage, Tokens
from settings_schema.foreign import ForeignError
from tests.hostile import EXAMPLES, contents, fuzz

RUN = Run(
    "r17", "gs://raw/corpus/", "2026-11-24T10:00:00Z", 1_764_000_000.5, code="ab" * 32, stage=Stage.TRAIN,
    objects=0, bytes=5, predicted_usd=1.5, batch="tpu-pipeline-r17", folder="tokens/r17/01-a_b.c", checked=2,
    tokens=Tokens("cd" * 32, "ef" * 32, 3, 1000, 2, 2000), train="fleet", training="slice r17", why="x",
)  # fmt: skip


def parsed(**changes: Any) -> Run:
    return record.parse("r17", json.dumps({**RUN.to_json(), **changes}))


@pytest.mark.parametrize("run", [RUN, replace(RUN, objects=None, tokens=None, failing_s=5.0, answered=7)])
def test_a_record_is_read_as_it_was_written(run: Run) -> None:
    assert record.parse("r17", record.text(run)) == run


@pytest.mark.parametrize(("changes", "why"), [
    ({"run": "r18"}, "is of r18"), ({"began": None}, "lacks began"), ({"stage": "sleep"}, "stage = "),
    ({"predicted_usd": "²"}, "predicted_usd = "), ({"tokens": []}, "tokens = list"),
    ({"batch": 'x" OR "'}, "batch = "), ({"why": {"a": 1}}, "why = dict"),
    ({"retry": 10**400}, "retry = int"),
    ({"raw": "s3://x"}, "raw = "), ({"outcome": "Trained!"}, "outcome = "),
    ({"folder": "tokens/r17/0 --set a=b"}, "folder = "), ({"folder": "tokens/r17/../../x"}, "folder = "),
])  # fmt: skip
def test_a_record_that_was_edited_wrongly_has_one_clear_message(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ForeignError, match=why):
        parsed(**changes)


def test_a_record_of_a_newer_version_is_refused() -> None:
    with pytest.raises(NewerError, match="is of version 2; this program knows 1") as refused:
        parsed(version=2)
    assert "fix: use the program that wrote it" in record.explained(refused.value, "gs://b/o")


@EXAMPLES
def test_no_content_is_anything_but_a_record_or_a_reason(examples: int) -> None:
    def check(raw: bytes) -> None:
        try:
            run = record.parse("r17", raw)
        except ForeignError:
            return
        assert record.parse("r17", record.text(run)) == run

    fuzz(examples, contents(RUN.to_json()), check)

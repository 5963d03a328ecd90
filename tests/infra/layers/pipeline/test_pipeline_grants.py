"""docs/internals/pipeline-grants.md tells of no grant that is gone: `python -m tests.proofs grants`."""

from datetime import date

import pytest

from tools import pipeline_grants

GRANTS = {item.named: item for item in pipeline_grants.every()}
ROWS = {row["grant"]: row for row in pipeline_grants.results()["rows"]}


def test_only_grants_of_today_were_taken_away() -> None:
    assert max(date.fromisoformat(row["on"]) for row in ROWS.values()) <= date.today()
    assert ROWS.keys() <= GRANTS.keys()
    assert len(ROWS) == len(pipeline_grants.results()["rows"])


@pytest.mark.parametrize("name", ROWS)
def test_what_was_said_names_the_role_whose_it_is_and_the_bucket(name: str) -> None:
    item, sentence = GRANTS[name], ROWS[name]["sentence"]
    assert (item.role or item.role_id) in sentence
    assert ("pipeline:" if item.of_commands else item.who) in sentence
    assert item.what in sentence or item.on != "bucket"

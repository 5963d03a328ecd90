"""Differences are declared of recordings that there are; tests/docs holds docs/standin.md to the code."""

from __future__ import annotations

from pathlib import Path

from tests.rehearsal.providers.replay import RECORDINGS

DOCUMENT = Path(__file__).parents[3] / "docs" / "standin.md"


def test_differences_name_recordings_that_exist() -> None:
    table = DOCUMENT.read_text(encoding="utf-8").partition("| difference | reason |")[2]
    rows = table.partition("\n\n")[0].splitlines()[2:]
    named = {name for row in rows for name in row.strip("| ").rpartition(" | ")[2].split(", ")}
    assert "storage.Bucket" in named
    for name in named - {"–", "all"}:
        assert (RECORDINGS / f"{name}.json").is_file(), name

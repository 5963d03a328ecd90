"""docs/standin.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from rehearsal.standin import handbook
from rehearsal.standin.differences import DECLARED
from tests.standin.replay import RECORDINGS

DOCUMENT = Path(__file__).parents[2] / "docs" / "standin.md"


def test_generated_parts_are_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == handbook.filled(text), "run: python -m rehearsal.standin.handbook docs/standin.md"
    assert all(block() in text for block in handbook.BLOCKS.values())


def test_differences_name_recordings_that_exist() -> None:
    for difference in DECLARED:
        for name in difference.seen.split(", ") if difference.seen not in ("", "all") else ():
            assert (RECORDINGS / f"{name}.json").is_file(), name

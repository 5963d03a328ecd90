"""docs/standin.md says what the code does."""

from __future__ import annotations

from rehearsal.standin import document
from rehearsal.standin.differences import DECLARED
from tests.standin.replay import RECORDINGS


def test_generated_parts_are_up_to_date() -> None:
    assert document.main([]) == 0
    text = document.DOCUMENT.read_text(encoding="utf-8")
    assert all(
        f"{block()}\n<!-- end generated: {name} -->" in text for name, block in document.BLOCKS.items()
    )


def test_differences_name_recordings_that_exist() -> None:
    for difference in DECLARED:
        for name in difference.seen.split(", ") if difference.seen not in ("", "all") else ():
            assert (RECORDINGS / f"{name}.json").is_file(), name

"""Differences are declared of recordings that there are; tests/docs holds docs/standin.md to the code."""

from __future__ import annotations

from rehearsal.standin.differences import DECLARED
from tests.standin.replay import RECORDINGS


def test_differences_name_recordings_that_exist() -> None:
    for difference in DECLARED:
        for name in difference.seen.split(", ") if difference.seen not in ("", "all") else ():
            assert (RECORDINGS / f"{name}.json").is_file(), name

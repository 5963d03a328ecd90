"""docs/rehearsal.md says what the code does: its generated blocks are those of today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rehearsal.errors import RehearsalError
from rehearsal.scenario.docs import BLOCKS, PAGE, main, written
from rehearsal.scenario.scenario import load
from rehearsal.scenario.steps import KINDS


def test_the_page_is_current() -> None:
    assert main([]) == 0


def test_an_outdated_page_is_written_anew() -> None:
    current = PAGE.read_text()
    outdated = re.sub(r"\| `survived` .*\n", "", current)
    assert outdated != current
    assert written(outdated) == current


def test_a_page_without_a_block_is_refused() -> None:
    with pytest.raises(RehearsalError, match="lacks the block rehearsal commands"):
        written("# The rehearsal\n")


def test_every_step_is_in_the_table() -> None:
    table = BLOCKS["scenario steps"]()
    assert [kind for kind in KINDS if f"| `{kind}` |" not in table] == []


def test_the_example_is_a_scenario(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example
    (tmp_path / "example.yaml").write_text(example.group(1))
    assert len(load(tmp_path / "example.yaml").steps) == 8

"""docs/rehearsal.md names every step, and its example is a scenario. tools/docs.py compares its blocks."""

from __future__ import annotations

import re
from pathlib import Path

from rehearsal.scenario.scenario import load
from rehearsal.scenario.step import STEPS
from tools.scenario_docs import step_table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rehearsal.md"


def test_every_step_is_in_the_table() -> None:
    table = step_table()
    assert [name for name in STEPS if f"| `{name}(" not in table] == []


def test_the_example_is_a_scenario(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example
    (tmp_path / "example.py").write_text(example.group(1))
    assert len(load(tmp_path / "example.py").steps) == 8

"""docs/benchmarks.md is what the results say, and names every command."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import COMMANDS, RESULTS
from benchmarks.page import PAGE, written


def test_the_page_and_its_picture_are_what_the_results_say() -> None:
    stale = [path.name for path, text in written().items() if path.read_text() != text]
    assert not stale, "run 'make docs'"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_on_the_page_and_says_what_it_does(name: str) -> None:
    assert f"`python -m benchmarks {name}`" in PAGE.read_text()
    assert COMMANDS[name].__doc__


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_says_what_it_was_measured_on(path: Path) -> None:
    result = json.loads(path.read_text())
    assert {"day", "cpu", "cores", "memory_gib", "python", "versions"} <= result["on"].keys()
    assert result["took_s"] > 0

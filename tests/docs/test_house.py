"""The rules of the house that a reader would otherwise have to watch over."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.engine.registry import layers
from tools.words import ROOT, files, problems, terms

LAYERS = {layer.name: layer for layer in layers()}


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert listed, f"no file matches {patterns}"
    return [ROOT / name for name in listed if (ROOT / name).exists()]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_of_others_only_what_they_declare(layer: str) -> None:
    """Pure functions, such as of any layer's settings; settings and outputs of those that it reads."""
    others = tuple(f"infra.layers.{other}." for other in LAYERS if other != layer)
    readable = tuple(f"infra.layers.{other}." for other in LAYERS[layer].needs)
    pure = re.compile(
        r"infra\.layers\.\w+\.(names|pods|pools|request|startup|jobs\.(jobset|submission))(\.\w+)?"
    )
    declared = re.compile(r"infra\.layers\.\w+\.(settings|outputs)(\.\w+)?")
    imported = {
        (str(path.relative_to(ROOT)), name)
        for path in tracked(f"infra/layers/{layer}/*.py")
        for name in imports(path)
        if name.startswith(others) and not pure.fullmatch(name)
        # Renders what the pipeline starts of other layers: a member of the fleet, a JobSet.
        if path.name != "handoff.py"
    }
    assert {
        (path, name)
        for path, name in imported
        if not (name.startswith(readable) and declared.fullmatch(name))
    } == set()


def test_no_python_file_is_longer_than_500_lines() -> None:
    assert not [path for path in tracked("*.py") if len(path.read_text("utf-8").splitlines()) > 500]


def test_no_file_is_named_for_nothing() -> None:
    empty = re.compile(r"^(utils?|helpers?|common|misc|manager)$")
    assert not [
        path
        for path in tracked()
        if any(empty.match(part.split(".")[0]) for part in path.relative_to(ROOT).parts)
    ]


def test_no_term_that_was_replaced_is_back() -> None:
    assert {pattern: count for pattern, count in terms(ROOT).items() if count} == {}


def test_no_docstring_begins_with_a_question_and_no_name_is_a_pronoun() -> None:
    assert [
        (str(path.relative_to(ROOT)), line, rule)
        for path in files(ROOT)
        if path.suffix == ".py"
        for line, rule in problems(path.read_text(encoding="utf-8"))
    ] == []


def test_what_breaks_the_rules_is_reported() -> None:
    source = '"""What it is."""\n\ndef tell(one):\n    """Whether it is so."""\n    found = one\n'
    assert [line for line, _ in problems(source)] == [1, 4, 3, 3, 5]

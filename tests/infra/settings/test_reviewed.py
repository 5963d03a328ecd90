"""Settings with which a review tried to break the project: each is refused where it is wrong, or is good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.engine import prices
from infra.engine.before import relations
from infra.errors import Problem, SettingsError
from infra.policy import RULES, Resource, findings
from infra.settings.schema import Settings
from tests.infra.declared import OFF, UP
from tests.infra.recording import BASE, parsed, run

DIGEST = f"sha256:{'0' * 64}"


@dataclass(frozen=True)
class Case:
    """Settings that differ in one key from good ones.

    Attributes:
        values: all of them.
        key: the one that differs.
        refused: at a `parse`, a `plan` or a `resource`; empty where they are good.
        named: path that a problem names.
        environment: its name.
    """

    values: Mapping[str, Any]
    key: str
    refused: str
    named: str
    environment: str

    def parsed(self) -> Settings:
        return parsed(self.values, self.environment)

    def applied(self, folder: Path) -> None:
        """Refuse what a plan refuses."""
        self.parsed()
        prices.within_budget(parsed(self.values, self.environment, relations(folder)))

    def names(self, problems: tuple[Problem, ...]) -> bool:
        """Return whether a problem is of the key, with a value, a rule and a fix."""
        assert all(problem.value and problem.rule and problem.fix for problem in problems)
        return any(
            problem.path.startswith(self.named) or self.named.startswith(problem.path) for problem in problems
        )


def _expanded(value: Any) -> Any:
    """Return a value of the file with its long texts and digests written out."""
    if isinstance(value, dict):
        if "letter" in value:
            return value.get("text", "%s") % (value["letter"] * value["times"])
        return {key: _expanded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item) for item in value]
    return value.replace("DIGEST", DIGEST) if isinstance(value, str) else value


def _cases() -> Iterator[Any]:
    for entry in yaml.safe_load((Path(__file__).parent / "reviewed.yaml").read_text()):
        base = {**BASE, **_expanded(entry.get("with", {}))}
        for layer in entry.get("layers", "").split():
            base |= {key: value for key, value in OFF[layer].items() if key not in entry.get("with", {})}
        key, refused = entry["key"], entry.get("refused", "parse")
        for way in ("bad", "good"):
            for number, value in enumerate(entry.get(way, ())):
                case = Case(
                    _with(base, key, _expanded(value)), key, refused if way == "bad" else "",
                    entry.get("named", key.removesuffix("[0]")), entry.get("environment", "dev"),
                )  # fmt: skip
                yield pytest.param(case, id=f"{key} {way} {number} {str(value)[:24]}")


def _with(base: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the settings with a value; one of an item, `key[0]`, replaces it, or is laid over a mapping."""
    values, name = deepcopy({**base}), key.removesuffix("[0]")
    if name != key:
        items = values.get(name) or []
        laid = {**items[0], **value} if isinstance(value, dict) else value
        value = [{k: v for k, v in laid.items() if v is not None} if isinstance(laid, dict) else laid]
    values[name] = value
    return {name: value for name, value in values.items() if value is not None}


@pytest.mark.parametrize("case", _cases())
def test_it_is_refused_where_it_is_wrong_or_is_good(case: Case, tmp_path: Path) -> None:
    if case.refused == "parse":
        with pytest.raises(SettingsError) as caught:
            case.parsed()
        assert case.names(caught.value.problems), str(caught.value)
    elif case.refused == "plan":
        with pytest.raises(SettingsError) as caught:
            case.applied(tmp_path)
        assert case.names(caught.value.problems), str(caught.value)
    elif case.refused == "resource":
        recorded = run(case.key.partition(":")[0], case.values, up=UP).resources
        resources = [Resource(item.type, item.name, item.inputs) for item in recorded]
        (role,) = case.values[case.named]
        assert f"role: {role}" in {finding.value for finding in findings(RULES, resources, case.parsed())}
    else:
        case.applied(tmp_path)

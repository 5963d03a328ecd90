"""The parser of settings: typed values as of TOML and JSON, texts as of Pulumi; all problems at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from settings_schema import rules
from settings_schema.parser import Parser, shown
from settings_schema.problem import Problem, listed
from settings_schema.schema import Former, setting

WORD = rules.pattern("[a-z]+", "lowercase letters", "")


@dataclass(frozen=True)
class Item:
    name: str = setting("its name", rule=WORD, example="a")
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inner:
    share: float = setting(default=0.5, rule=rules.below(1))


@dataclass(frozen=True)
class Config:
    count: int = setting(default=4, rule=rules.between(1, 9), most=8)
    rate: float = setting(default=1.0, rule=rules.above(0))
    low: int = setting(default=2, rule=rules.at_least(2))
    on: bool = False
    kind: str = setting(default="a", rule=rules.one_of("a", "b"))
    path: Path | None = None
    words: tuple[str, ...] = setting(default=(), rule=WORD)
    labels: Mapping[str, str] = setting(default={}, rule=WORD, key_rule=WORD)
    anything: dict[str, dict[str, int]] = field(default_factory=dict)
    items: tuple[Item, ...] = ()
    inner: Inner = Inner()
    size: int | None = setting(default=None, rule=rules.between(1, 2))
    share: int | None = setting(default=None, rule=rules.between(1, 2), example="2")
    weight: int | None = setting(default=None)

    former: ClassVar[Mapping[str, Former]] = {
        "heaviness": Former("unknown key", "write weight: that was in stones", "weight")
    }


def parsed(raw: dict[str, Any], **options: Any) -> tuple[Config, dict[str, str], set[str]]:
    parser = Parser(**options)
    config = parser.section("", Config, raw)
    return (
        config,
        {problem.path: f"{problem.rule} | {problem.fix}" for problem in parser.problems},
        parser.broken,
    )


def test_typed_values_are_taken_as_they_are() -> None:
    raw = {
        "count": 8, "rate": 2, "low": 2, "on": True, "kind": "b", "path": None, "words": "one",
        "labels": {"a": "b"}, "anything": {"a": {"b": 1}}, "items": [{"name": "x", "parts": ["y"]}],
        "inner": {"share": 0},
    }  # fmt: skip
    config, problems, _ = parsed(raw)
    assert problems == {}
    assert config == Config(
        8, 2.0, 2, True, "b", None, ("one",), {"a": "b"}, {"a": {"b": 1}}, (Item("x", ("y",)),), Inner(0.0)
    )  # fmt: skip
    assert type(config.rate) is float
    assert parsed({"path": "x", "size": 2})[0] == Config(path=Path("x"), size=2)


def test_texts_are_what_pulumi_passes() -> None:
    raw = {"count": "8", "rate": "2", "on": "True", "words": '["one"]', "items": '[{"name": "x"}]'}
    config, problems, _ = parsed(raw, texts=True)
    assert problems == {}
    assert config == Config(8, 2.0, on=True, words=("one",), items=(Item("x"),))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"count": 0}, "must be 1 to 9 | the default is 4"),
        ({"count": 9}, "must be at most 8 | the default is 4"),
        ({"count": "3"}, "must be a whole number | write digits only, without a unit"),
        ({"count": True}, "must be a whole number | write digits only, without a unit"),
        ({"rate": 0}, "must be greater than 0 | the default is 1.0"),
        ({"rate": float("inf")}, "must be finite | write a number, such as 0.5"),
        ({"rate": 10**400}, "must be a number | write a number, such as 0.5"),
        ({"low": 1}, "must be at least 2 | the default is 2"),
        ({"on": "true"}, "must be true or false | write true or false"),
        ({"kind": "c"}, 'must be one of a, b | the default is "a"'),
        ({"path": 3}, "must be a path | put it in quotes"),
        ({"words": 3.5}, "must be a list | write it as a list: […]"),
        ({"labels": []}, "must be keys with values | write one `key: value` a line under it"),
        ({"labels": '{"a": "b"}'}, "must be keys with values | write one `key: value` a line under it"),
        ({"inner": 3}, "must be a table | write [inner]"),
        ({"size": 3}, "must be 1 to 2 | write such a value"),
        ({"share": 3}, "must be 1 to 2 | write e.g. 2, or remove it"),
        ({"heaviness": 3}, "unknown key | write weight: that was in stones"),
        ({"cuont": 3}, "unknown key | did you mean count?"),
    ],
)
def test_a_wrong_value_is_reported_and_becomes_the_default(raw: dict[str, Any], message: str) -> None:
    config, problems, _ = parsed(raw)
    assert [*problems.values()] == [message]
    assert config == Config()


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({"words": ["x", "Y"]}, "words[1]"), ({"labels": {"K": "v"}}, "labels.K"),
        ({"labels": {"k": 3}}, "labels.k"), ({"inner": {"share": 1}}, "inner.share"),
        ({"items": [{"name": "x"}, {"name": "Y"}]}, "items[1].name"), ({"items": [{}]}, "items[0].name"),
        ({"items": ["x"]}, "items[0]"),
    ],
)  # fmt: skip
def test_a_problem_inside_has_its_path_and_good_items_stay(raw: dict[str, Any], path: str) -> None:
    config, problems, broken = parsed(raw)
    assert ([*problems], path in broken, "items" in broken) == ([path], True, False)
    assert config.words in ((), ("x",))
    assert config.labels == {}


def test_a_near_miss_breaks_the_key_that_was_meant_unless_it_is_there() -> None:
    assert parsed({"cuont": 3})[2] == {"count"}
    assert parsed({"cuont": 3, "count": 3})[2] == set()
    assert parsed({"Ra_te": 3})[1] == {"Ra_te": "unknown key | did you mean rate?"}
    (message,) = parsed({"zzzzzz": 3})[1].values()
    assert message.startswith("unknown key | remove it; known are count, rate, low")


def test_a_problem_of_reading_is_not_repeated_as_a_missing_key() -> None:
    parser = Parser(problems=[Problem("i.name", "a secret", "plain text", "write it")])
    parser.section("i.", Item, {})
    assert [problem.rule for problem in parser.problems] == ["plain text"]
    required = Parser()
    required.section("s:", Item, {})
    assert (required.problems[0].rule, required.problems[0].fix) == ("required (its name)", "add s:name: a")
    assert parsed({"items": [{}]})[1] == {"items[0].name": "required (its name) | add name: a"}


def test_texts_refuse_repeated_items_and_null() -> None:
    config, problems, broken = parsed({"words": '["x", "x"]', "path": None}, texts=True)
    assert config.words == ("x",)
    assert problems["words"] == "each item once | remove the repetition"
    assert ("words" in broken, "path" in broken) == (False, True)


def test_rules_of_records_see_what_is_broken() -> None:
    def rule(path: str, item: Item, raw: dict[str, Any], broken: set[str]) -> tuple[Item, list[Problem]]:
        return Item("z"), [Problem(path, raw["name"], f"{f'{path}.name' in broken}", "")]

    config, problems, _ = parsed({"items": [{"name": "Y"}]}, record_rules={Item: rule})
    assert config.items == (Item("z"),)
    assert problems["items[0]"] == "True | "


def test_values_are_shown_as_the_user_wrote_them() -> None:
    assert [shown(value) for value in (None, "a", "9", "[1]", 9, "x\u2028")] == [
        "nothing", '"a"', "9", "[1]", "9", '"x\\u2028"',
    ]  # fmt: skip
    assert shown("9", texts=False) == '"9"'
    assert len(shown("x" * 200)) == 80


def test_problems_are_listed_below_their_number() -> None:
    problem = Problem("a.b", "1", "must be 2", "write 2")
    assert listed("f.toml", [problem, problem]).splitlines()[:3] == [
        "2 problems in f.toml:", "  a.b = 1: must be 2", "    fix: write 2",
    ]  # fmt: skip

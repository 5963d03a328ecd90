"""Data of hosts and pods: a value of the requested type, or an error that names the key."""

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st

from settings_schema import foreign
from settings_schema.foreign import ForeignError
from tests.hostile import EXAMPLES, VALUES, contents, fuzz


@pytest.mark.parametrize(
    ("value", "expected"),
    [("5", 5), (5, 5), ("9" * 18, 10**18 - 1), (0, 0), (None, 0), ("", 0)],
)
def test_a_count_is_a_number_or_ascii_digits(value: Any, expected: int) -> None:
    assert foreign.count({"samples": value}, "samples") == expected


@pytest.mark.parametrize(
    "value", ["²", "１５", "9" * 4400, 10**18, -1, "-1", 1.5, True, math.nan, [], {}, "1e9", " 5", "1_0"]
)
def test_anything_else_is_no_count(value: Any) -> None:
    with pytest.raises(
        ForeignError, match=r"^samples = .{1,70}: must be a whole number of at most 18 digits$"
    ):
        foreign.count({"samples": value}, "samples")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("-2.5", -2.5), (3, 3.0), ("1e-07", 1e-7), ("5.", 5.0), (10**400, None), ("nan", None), ("-inf", None),
     (math.inf, None), (1e31, None), ("1e999", None), (None, None)],
)  # fmt: skip
def test_a_number_is_finite_or_unknown(value: Any, expected: float | None) -> None:
    assert foreign.number({"loss": value}, "loss") == expected


@pytest.mark.parametrize("value", ["１", "1_0", "0x1", " 1", "9" * 4400, False, [1.0], {"a": 1}])
def test_anything_else_is_no_number(value: Any) -> None:
    with pytest.raises(ForeignError, match=r"^loss = "):
        foreign.number({"loss": value}, "loss")


def test_a_text_is_of_its_pattern_cut_off_and_without_halves_of_pairs() -> None:
    assert foreign.text({"why": "x" * 5000}, "why") == "x" * 2000
    assert foreign.text({"why": "a\ud800"}, "why") == "a?"
    assert foreign.text({}, "why") == ""
    for value in (5, ["a"], "A/b"):
        with pytest.raises(ForeignError, match=r"^name = "):
            foreign.text({"name": value}, "name", "[a-z]+")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"a":' * 100_000, "no JSON"),
        (b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "nested deeper than 32"),
        (b'{"a": ' + b"9" * 5000 + b"}", "no JSON"),
        (b'{"a": "\xff"}', "no JSON"),
        (b"[]", "no JSON object"),
        (b"{}" + b" " * (1 << 20), "more than 1048576 bytes"),
    ],
)
def test_json_beyond_the_limits_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(ForeignError, match=why):
        foreign.parse(raw)


@EXAMPLES
def test_no_content_raises_another_error(examples: int) -> None:
    def check(raw: bytes) -> None:
        with suppress(ForeignError):
            json.dumps(foreign.parse(raw))

    fuzz(examples, contents({"state": "running", "samples": 5, "inner": {}}), check)


@EXAMPLES
def test_no_value_raises_another_error(examples: int) -> None:
    def check(value: Any) -> None:
        for read in (foreign.text, foreign.count, foreign.number, foreign.group):
            with suppress(ForeignError):
                read({"key": value}, "key")

    fuzz(examples, VALUES | st.text(), check)

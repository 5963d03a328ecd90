"""Data as a hostile host or pod writes it: hundreds of examples in `make test`, more in `make prove`."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = pytest.mark.parametrize("examples", [300, pytest.param(10_000, marks=pytest.mark.prove)])

TEXTS = st.text(max_size=20) | st.sampled_from(
    ["²", "１５", "9" * 4400, "1e999", "-1e308", "1e15", "nan", "-1", "1_0", " 5", "running", "failed",
     "../../x", "\x1b[2J", "\x9b2J", "a\rb", "\u202e", "\x00", "\ud800", "x" * 5000,
     "2026-11-24T10:00:00Z"]
)  # fmt: skip
"""Texts, many of which look like numbers, words and times of ours."""

_SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats() | st.just(10**4000) | TEXTS
)
VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)

_DEEP = [b'{"a":' * 100_000, b"[" * 100_000, b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}"]
_BROKEN = [*_DEEP, b"", b"null", b"[]", b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}", b" " * ((1 << 20) + 1)]


def like(good: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that differ from a good one in some values, and in what they lack."""
    changed = st.dictionaries(st.sampled_from(sorted(good)), VALUES, max_size=3)
    lacking = st.sets(st.sampled_from(sorted(good)), max_size=1)
    return st.builds(
        lambda more, less: {key: value for key, value in {**good, **more}.items() if key not in less},
        changed, lacking,
    )  # fmt: skip


def contents(good: Mapping[str, Any]) -> st.SearchStrategy[bytes]:
    """Return contents of objects: like a good one, or no JSON at all."""
    written = like(good).map(lambda data: json.dumps(data).encode())
    cut = st.builds(lambda raw, end: raw[:end], written, st.integers(0, 200))
    broken = st.sampled_from(range(len(_BROKEN))).map(_BROKEN.__getitem__)
    return written | cut | broken | st.binary(max_size=50)


def fuzz(examples: int, data: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Check so many examples."""
    settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)(
        given(data)(lambda example: check(example))
    )()

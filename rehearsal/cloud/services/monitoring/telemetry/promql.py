"""PromQL, as far as alerts and dashboards of a program use it; anything else is refused when it is read.

    sum by (node) (increase(NAME_sum{monitored_resource="generic_node"}[5m])) > 10 unless …

Numbers, selectors with `=`, `!=`, `=~`, `!~`, `increase` over a range, `vector`, aggregations, arithmetic,
comparisons, `and`, `or`, `unless`; vectors match on all of their labels. Metrics are named as
https://cloud.google.com/monitoring/promql/promql-mapping has it; a distribution has `_sum` and `_count`.
`increase` adds up the points of the window, and doesn't extrapolate as Prometheus does.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from rehearsal.cloud.core.errors import NotEmulatedError, bad_request
from rehearsal.cloud.services.monitoring.telemetry.series import Points, Series

Key = tuple[tuple[str, str], ...]
Vector = dict[Key, float]
Value = Vector | float

_TOKEN = re.compile(
    r"\s*(?:([a-zA-Z_][\w:]*)|(\d+(?:\.\d+)?(?:e[+-]?\d+)?)([smhd])?|"
    r'("(?:[^"\\]|\\.)*")|(==|!=|>=|<=|=~|!~|[-+*/<>=(){}\[\],]))'
)
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AGGREGATE: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "count": len,
    "avg": lambda values: sum(values) / len(values),
}
_COMPARE = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
_LEVELS = (("or",), ("and", "unless"), tuple(_COMPARE), ("+", "-"), ("*", "/"))
_SETS = ("or", "and", "unless")


@dataclass(frozen=True)
class Moment:
    """The time and the points of an evaluation; `types` maps a metric's PromQL name to its type."""

    points: Points
    now_s: float
    types: Mapping[str, str]


Node = Callable[[Moment], Value]


@cache
def promql_name(metric: str) -> str:
    """Return a metric's type as PromQL names it."""
    domain, _, rest = metric.partition("/")
    return ":".join(re.sub(r"[^a-zA-Z0-9_]", "_", part) for part in (domain, rest))


@cache  # policies are evaluated each minute
def parse(text: str) -> tuple[Node, frozenset[str]]:
    """Return an expression, and the names of the metrics in it, as they stand there.

    Raises ApiError: 400 where it is no PromQL, 501 for what isn't emulated.
    """
    parser = _Parser(text)
    node = parser.binary(0)
    if parser.tokens:
        raise parser.wrong()
    return node, frozenset(parser.metrics)


def resolved(name: str, types: Mapping[str, str]) -> tuple[str, str]:
    """Return the type of a metric, and `_sum` or `_count` where a name is that of a distribution's part."""
    if name in types:
        return types[name], ""
    base, _, part = name.rpartition("_")
    return (types.get(base, ""), f"_{part}") if part in ("sum", "count") else ("", "")


def vector(node: Node, moment: Moment) -> Vector:
    """Return the value of an expression, a scalar as a vector without labels."""
    value = node(moment)
    return value if isinstance(value, dict) else {(): value}


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.metrics = text, set[str]()
        self.tokens: list[str] = []
        at = 0
        while text[at:].strip():
            token = _TOKEN.match(text, at)
            if token is None:
                raise bad_request(f"Invalid PromQL: syntax error at {text[at : at + 20]!r}")
            self.tokens.append(token[0].strip())
            at = token.end()

    def wrong(self) -> Exception:
        token = self.tokens[0] if self.tokens else "the end"
        return bad_request(f"Invalid PromQL: unexpected {token!r} in {self.text!r}")

    def take(self, *expected: str) -> str:
        if not self.tokens or (expected and self.tokens[0] not in expected):
            raise self.wrong()
        return self.tokens.pop(0)

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.tokens and self.tokens[0] in _LEVELS[level]:
            sign = self.take()
            if self.tokens and self.tokens[0] in ("on", "ignoring", "bool"):
                raise NotEmulatedError(f"PromQL's {self.tokens[0]}")
            left = _joined(sign, left, self.binary(level + 1))
        return left

    def unary(self) -> Node:
        token = self.take()
        if token == "(":
            inner = self.binary(0)
            self.take(")")
            return inner
        if re.fullmatch(r"\d[\d.e+-]*", token):
            number = float(token)
            return lambda _: number
        if token in _AGGREGATE:
            return self.aggregation(token)
        if token in ("increase", "vector"):
            self.take("(")
            inner = self.ranged() if token == "increase" else self.binary(0)
            self.take(")")
            return inner if token == "increase" else lambda moment: vector(inner, moment)
        if re.match("[a-zA-Z_]", token):
            if self.tokens and self.tokens[0] == "(":
                raise NotEmulatedError(f"PromQL's function {token}")
            raise NotEmulatedError(f"The PromQL selector {token} without increase()")
        self.tokens.insert(0, token)
        raise self.wrong()

    def aggregation(self, name: str) -> Node:
        by: tuple[str, ...] = ()
        if self.tokens and self.tokens[0] in ("by", "without"):
            if self.take() == "without":
                raise NotEmulatedError("PromQL's without")
            by = self.names()
        self.take("(")
        inner = self.binary(0)
        self.take(")")
        if self.tokens and self.tokens[0] == "by":
            self.take()
            by = self.names()
        reduce = _AGGREGATE[name]

        def node(moment: Moment) -> Value:
            groups: dict[Key, list[float]] = defaultdict(list)
            for key, value in vector(inner, moment).items():
                labels = dict(key)
                groups[tuple((name, labels[name]) for name in sorted(by) if labels.get(name))].append(value)
            return {key: float(reduce(values)) for key, values in groups.items()}

        return node

    def names(self) -> tuple[str, ...]:
        self.take("(")
        names = []
        while self.tokens and self.tokens[0] != ")":
            names.append(self.take())
            if self.tokens and self.tokens[0] == ",":
                self.take()
        self.take(")")
        return tuple(names)

    def ranged(self) -> Node:
        """Return a selector with a window: what came within, of each series."""
        name, matchers = self.take(), []
        self.take("{")
        while self.tokens and self.tokens[0] != "}":
            label, sign = self.take(), self.take("=", "!=", "=~", "!~")
            matchers.append((label, sign, re.sub(r"\\(.)", r"\1", self.take()[1:-1])))
            if self.tokens and self.tokens[0] == ",":
                self.take()
        self.take("}")
        self.take("[")
        window = re.fullmatch(r"(\d+)([smhd])", self.take())
        self.take("]")
        if window is None:
            raise bad_request(f"Invalid PromQL: no duration in {self.text!r}")
        resource = next((value for label, sign, value in matchers if (label, sign) == (_RESOURCE, "=")), None)
        if resource is None:  # several resources may have a log-based metric: Google requires its name
            raise bad_request(f"Invalid PromQL: {name} may have multiple resource types: name {_RESOURCE}.")
        self.metrics.add(name)
        seconds = int(window[1]) * _UNIT_S[window[2]]

        def node(moment: Moment) -> Value:
            vector_now: Vector = {}
            metric, part = resolved(name, moment.types)
            for series in moment.points.of(metric, resource):
                labels = _labels(series)
                values = series.within(moment.now_s - seconds, moment.now_s)
                if values and all(_matches(labels, *matcher) for matcher in matchers):
                    vector_now[tuple(sorted(labels.items()))] = float(
                        len(values) if part == "_count" else sum(values)
                    )
            return vector_now

        return node


_RESOURCE = "monitored_resource"


def _labels(series: Series) -> dict[str, str]:
    return {**series.resource_labels, **series.metric_labels, _RESOURCE: series.resource}


def _matches(labels: Mapping[str, str], label: str, sign: str, value: str) -> bool:
    text = labels.get(label, "")
    same = re.fullmatch(value, text) is not None if "~" in sign else text == value
    return same != sign.startswith("!")


def _joined(sign: str, left: Node, right: Node) -> Node:
    def node(moment: Moment) -> Value:
        first, second = left(moment), right(moment)
        if sign in _SETS:
            return _of_sets(sign, _vector(first), _vector(second))
        if isinstance(first, float) and isinstance(second, float):
            if sign in _COMPARE:
                raise bad_request("Invalid PromQL: comparisons between scalars must use bool.")
            return _computed(sign, first, second)
        pairs: dict[Key, tuple[float, float]]
        if isinstance(second, float):
            pairs = {key: (value, second) for key, value in _vector(first).items()}
        elif isinstance(first, float):
            pairs = {key: (first, value) for key, value in second.items()}
        else:
            pairs = {key: (value, second[key]) for key, value in first.items() if key in second}
        if sign not in _COMPARE:
            return {key: _computed(sign, a, b) for key, (a, b) in pairs.items()}
        shown = 1 if isinstance(first, float) else 0  # the vector's own value stays
        compare = _COMPARE[sign]
        return {key: pair[shown] for key, pair in pairs.items() if compare(*pair)}

    return node


def _vector(value: Value) -> Vector:
    return value if isinstance(value, dict) else {(): value}


def _of_sets(sign: str, first: Vector, second: Vector) -> Vector:
    if sign == "or":
        return {**second, **first}
    return {key: value for key, value in first.items() if (key in second) == (sign == "and")}


def _computed(sign: str, a: float, b: float) -> float:
    if sign == "/":
        return a / b if b else (math.nan if not a else math.copysign(math.inf, a))
    return {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign](a, b)  # type: ignore[no-any-return]

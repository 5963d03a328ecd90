"""YAML as Pulumi reads it: Go's yaml.v3, which follows YAML 1.2 where PyYAML follows 1.1.

So `yes` and `16:40` are texts and `1e3` is a number. Read from resolve.go of
https://github.com/go-yaml/yaml/tree/v3, and held against `pulumi config` by a test.
"""

import datetime
import math
import re
from difflib import get_close_matches
from typing import Any, ClassVar

import yaml

MAX_VALUES = 100_000  # a thousand slices with all their settings are a fifth of it
MAX_DEPTH = 100
TOP_LEVEL = ("config", "encryptedkey", "encryptionsalt", "secretsprovider")


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML was built with it


class _Loader(_Base):  # type: ignore[misc]
    """Refuses what Pulumi refuses: a key that stands twice, and aliases that expand without end."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # not those of YAML 1.1

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and _expanded(node, {}) > MAX_VALUES:
            raise _refusal(f"its aliases expand to more than {MAX_VALUES:,} values", node)
        return node

    def boolean(self, node: yaml.ScalarNode) -> bool:
        return {"true": True, "false": False}[node.value.lower()]

    def number(self, node: yaml.ScalarNode) -> int | float | str:
        """Return a number as Go's JSON writes it: 1.0 is 1, and a whole one beyond 64 bits is a float."""
        written = node.value.replace("_", "").lower()
        digits = written.lstrip("+-")
        if re.fullmatch(r"0[0-7]+", digits):
            digits = f"0o{digits[1:]}"
        try:
            whole = int(digits, 0)
        except ValueError:
            value = float(written)
            if math.isinf(value) and "inf" not in written:
                return str(node.value)
            return int(value) if value.is_integer() and abs(value) < 1e21 else value
        if whole >= 1 << 64:
            return float(written)
        return -whole if written.startswith("-") else whole

    def timestamp(self, node: yaml.ScalarNode) -> str:
        """Return a date as Go prints a time: no setting is one."""
        year, month, day = (int(part) for part in re.split("[-Tt ]", node.value)[:3])
        try:
            return f"{datetime.date(year, month, day)} 00:00:00 +0000 UTC"
        except ValueError:
            return str(node.value)


def _refusal(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def _expanded(node: yaml.Node, known: dict[int, float]) -> float:
    """Values of a node once every alias is written out; infinitely many where it holds itself.

    Raises YAMLError for a mapping with a key that stands twice.
    """
    if id(node) not in known:
        known[id(node)] = math.inf
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key in (key for key, _ in inner if isinstance(key, yaml.ScalarNode)):
                if key.value in seen:
                    raise _refusal(f"{key.value} is there twice", key)
                seen.add(key.value)
        parts = [part for item in inner for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(node)]


_DIGITS = "-+.0123456789"
for _tag, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", "<<", "<"),
    ("timestamp", r"\d{4}-\d\d?-\d\d?([Tt ].*)?", "0123456789"),
    ("float", r"[-+]?(0[bB][01_]+|0[oO][0-7_]+|0[xX][0-9a-fA-F_]+)", _DIGITS),
    ("float", r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?", _DIGITS),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", _DIGITS),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first))
for _tag, _construct in (
    ("bool", _Loader.boolean),
    ("int", _Loader.number),
    ("float", _Loader.number),
    ("timestamp", _Loader.timestamp),
):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _construct)


def load(text: str) -> Any:
    """Parse a YAML text. Raises YAMLError, ValueError, TypeError, LookupError or RecursionError."""
    # libyaml composes by recursion without a limit of its own.
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _refusal(f"nested more than {MAX_DEPTH} deep", event)
    return yaml.load(text, _Loader)


def unknown_keys(content: dict[Any, Any]) -> list[tuple[str, str]]:
    """Keys beside `config:` that Pulumi reads over in silence, with the one that was probably meant."""
    unknown = sorted(str(key) for key in content if key not in TOP_LEVEL)
    return [(key, (get_close_matches(key, TOP_LEVEL, 1) or [""])[0]) for key in unknown]

"""Resource types in the installed pulumi-gcp SDK: properties, shapes, defaults and values.

Read from the SDK's source, not by importing it: `pulumi_gcp.compute` alone takes seconds to import, and a
type needs a few classes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path

_GETTER = re.compile(
    r'    @pulumi\.getter(?:\(name="(\w+)"\))?\n    def (\w+)\(self\) -> ([^\n]+):\n'
    r'(?:        """\n(.*?)\n        """)?',
    re.DOTALL,
)
_DEFAULT = re.compile(r"Default value(?: is|:) `([^`]*)`")
_VALUES = re.compile(r"Possible values are: ((?:`[^`]+`(?:, )?)+)")


@dataclass(frozen=True)
class Property:
    """A property as the SDK declares it: `shape` is `str`, `int`, `float`, `bool`, `Any` or a class's name.

    `many`: a list of them; `mapping`: a map of them. `default` and `values` are parsed from its text.
    """

    name: str
    shape: str
    many: bool
    mapping: bool
    optional: bool
    default: str | None
    values: tuple[str, ...]


@dataclass(frozen=True)
class ResourceType:
    """A resource type: what a program can give it, what it gives back, and whether Google may set it."""

    inputs: Mapping[str, Property]
    outputs: Mapping[str, Property]
    computed: frozenset[str]
    module: str


def resource_type(token: str) -> ResourceType:
    """Return the type `token` (`gcp:pubsub/topic:Topic`); KeyError if the SDK has none."""
    module, name = token.split(":")[1].split("/")[0], token.rsplit(":", 1)[-1]
    file = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    source = f"{module}/{file}.py"
    inputs = _properties(source, f"{name}Args")
    known_after = _properties(source, name)
    computed = {
        n for n, p in known_after.items() if not p.optional and (n not in inputs or inputs[n].optional)
    }
    return ResourceType(inputs, _properties(source, f"_{name}State"), frozenset(computed), module)


def nested(module: str, shape: str) -> Mapping[str, Property]:
    """Return the properties of a nested type, e.g. `V2VmNetworkConfigArgs` of `tpu`."""
    return _properties(f"{module}/_inputs.py", shape)


@cache
def _properties(source: str, name: str) -> Mapping[str, Property]:
    text = _text(source)
    start = re.search(rf"^class {name}[:(]", text, re.MULTILINE) if name in text else None
    if start is None:
        raise KeyError(f"{name} of pulumi_gcp/{source}")
    end = text.find("\nclass ", start.end())
    return {p.name: p for p in _read(text[start.start() : end if end > 0 else len(text)])}


def _read(body: str) -> Iterator[Property]:
    for match in _GETTER.finditer(body):
        alias, name, annotation, words = match.groups()
        shape = annotation.replace("pulumi.Input[", "").replace("pulumi.Output[", "").rstrip("]")
        optional = shape.startswith("Optional[")
        shape = shape.removeprefix("Optional[")
        many, mapping = shape.startswith("Sequence["), shape.startswith("Mapping[")
        shape = re.split(r"[\[ ]", shape)[-1].strip("'").removeprefix("_builtins.").rpartition(".")[2]
        text = " ".join((words or "").split())
        default, values = _DEFAULT.search(text), _VALUES.search(text)
        yield Property(
            alias or name,
            shape,
            many,
            mapping,
            optional,
            default and default[1],
            tuple(re.findall("`([^`]+)`", values[1])) if values else (),
        )


@cache
def _text(source: str) -> str:
    text = util.find_spec("pulumi_gcp")
    folders = text.submodule_search_locations if text else None
    return (Path((folders or ["."])[0]) / source).read_text(encoding="utf-8")

"""Declarations of the Terraform provider behind pulumi-gcp: which change replaces, defaults, suppressions.

`terraform.json` is made from the provider's source by tools/provider_schema; no line of it is written
manually. Pulumi spells a property in camel case, and a list of several in the plural.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from google_facts.terraform import type_name

TABLE = Path(__file__).with_name("terraform.json")


@dataclass(frozen=True)
class Declared:
    """A property as Terraform declares it.

    `kind`: string, bool, int, float, map, list, set; `block` one object, `blocks` and `blockset` several;
    `single`: a list of one text. `fixed`: its change replaces the resource. `suppress`: the function that
    takes two values for one, `unset` the value that it takes for none. `conflicts`: properties that exclude
    it, by their Terraform paths.
    """

    kind: str
    required: bool = False
    optional: bool = False
    computed: bool = False
    fixed: bool = False
    sensitive: bool = False
    default: Any = None
    suppress: str = ""
    unset: str = ""
    stored: str = ""
    values: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    nested: dict[str, Declared] = field(default_factory=dict)


Properties = Mapping[str, Declared]


@dataclass(frozen=True)
class ResourceType:
    """A resource type: whether Terraform can import it, and its properties by their compact names."""

    importer: bool
    properties: Properties


@dataclass(frozen=True)
class Product:
    """An API as the provider calls it: its root, and the setting and variable that replace the root."""

    base: str
    setting: str
    variable: str


@cache
def resource_type(token: str) -> ResourceType:
    """Return the declarations of the type `token`; KeyError if the table has none."""
    entry = _table()["types"][type_name(token)]
    properties: dict[str, Declared] = {}
    for path, about in sorted(entry["properties"].items()):
        level = properties
        *parents, name = path.split(".")
        for parent in parents:
            level = level[compact(parent)].nested
        level[compact(name)] = _declared(about)
    return ResourceType(entry["importer"], properties)


def find(properties: Properties, name: str) -> Declared | None:
    """Return the declaration of Pulumi's property `name`; None if there is none."""
    short = compact(name)
    for spelling in (
        short,
        short.removesuffix("s"),
        short.removesuffix("es"),
        short.removesuffix("ies") + "y",
    ):
        if spelling in properties:
            return properties[spelling]
    return None


@cache
def product(name: str) -> Product:
    """Return the API that the provider calls `name`."""
    base, setting, variable = _table()["products"][name]
    first, *rest = setting.split("_")
    return Product(base, first + "".join(word.capitalize() for word in rest), variable)


def products() -> list[Product]:
    """Return the APIs that resources here are of."""
    return [product(name) for name in _table()["products"]]


def compact(name: str) -> str:
    """Return a spelling that both sides share: `ip_cidr_range` and `ipCidrRange` are `ipcidrrange`."""
    return name.replace("_", "").lower()


def _declared(about: str | Mapping[str, Any]) -> Declared:
    given = {"is": about} if isinstance(about, str) else about
    kind, *flags = given["is"].split()
    attributes: dict[str, Any] = dict.fromkeys(flags, True)
    for key in given.keys() - {"is"}:
        attributes[key] = tuple(given[key]) if isinstance(given[key], list) else given[key]
    return Declared(kind, **attributes)


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table

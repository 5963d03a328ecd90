"""Checking a program's inputs before anything is sent: unknown names, missing, wrong and defaulted values.

Messages follow the official provider's wording, so that people see in a rehearsal what they will
see in production; only what the stand-in lacks has wording of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rehearsal.providers.gcp.field import Field, Kind
from rehearsal.providers.gcp.table import Table
from rehearsal.providers.plugin.provider import Checked
from rehearsal.providers.plugin.values import UNKNOWN, Asset

_SHAPES: dict[Kind, tuple[type[Any], ...]] = {
    Kind.STRING: (str,),
    Kind.INT: (int,),
    Kind.NUMBER: (int, float),
    Kind.BOOL: (bool,),
    Kind.LIST: (list,),
    Kind.SET: (list,),
    Kind.MAP: (dict,),
    Kind.LABELS: (dict,),
    Kind.BLOCK: (dict,),
    Kind.BLOCKS: (list,),
    Kind.BLOCK_SET: (list,),
    Kind.ASSET: (Asset,),
    Kind.ANY: (object,),
}


def check(
    table: Table, given: Mapping[str, Any], before: Mapping[str, Any], name: str, seed: bytes
) -> Checked:
    """Check and complete `given`.

    `before`: the inputs of before, whose automatic name is kept. `name`: the resource's logical
    name. `seed`: the engine's randomness, from which an automatic name's suffix is made.
    """
    failures: list[tuple[str, str]] = []
    inputs = _check_fields(table.inputs, given, "", failures)
    if table.auto_name and inputs.get("name") is None and inputs.get("namePrefix") is None:
        automatic = "name" in before.get("__defaults", []) and before.get("name")
        inputs["name"] = automatic or f"{name}-{hashlib.sha256(seed + name.encode()).hexdigest()[:7]}"
        inputs["__defaults"] = sorted([*inputs["__defaults"], "name"])
    return Checked(inputs, [(path, _sentence(table.token, name, path, reason)) for path, reason in failures])


def _sentence(token: str, name: str, path: str, reason: str) -> str:
    return f"{token} resource '{name}' has a problem: {reason}. Examine values at '{name}.{path}'."


def _check_fields(
    fields: tuple[Field, ...], given: Mapping[str, Any], path: str, failures: list[tuple[str, str]]
) -> dict[str, Any]:
    known = {f.name: f for f in fields if not f.output}
    result: dict[str, Any] = {}
    defaulted: list[str] = []
    for key, value in given.items():
        if key == "__defaults" or value is None:
            continue
        if key not in known:
            failures.append((path + key, f"the stand-in doesn't know the property {path + key!r}"))
            continue
        result[key] = _check_value(known[key], value, path + key, failures)
    for f in known.values():
        if f.name in result:
            failures += _conflicts(f, result, path)
        elif f.default is not None:
            result[f.name] = f.default
            defaulted.append(f.name)
        elif f.required:
            failures.append((path + f.name, f"Missing required property '{f.name}'"))
    return {**result, "__defaults": sorted(defaulted)}


def _check_value(f: Field, value: Any, path: str, failures: list[tuple[str, str]]) -> Any:
    if value is UNKNOWN:
        return value
    shapes: Any = _SHAPES[f.kind]
    is_bool_for_number = isinstance(value, bool) and f.kind in (Kind.INT, Kind.NUMBER)
    if not isinstance(value, shapes) or is_bool_for_number:
        failures.append((path, f"expected {f.kind.name.lower()}, got {value!r}"))
        return value
    if f.one_of and value not in ("", *f.one_of):
        allowed = " ".join(f'"{item}"' for item in f.one_of)
        failures.append((path, f"expected {f.snake} to be one of [{allowed}], got {value}"))
    if f.only is not None and value != f.only:
        failures.append((path, f"the stand-in doesn't know {path} = {value!r}, only {f.only!r}"))
    if f.kind is Kind.BLOCK:
        return _check_fields(f.fields, value, f"{path}.", failures)
    if f.kind in (Kind.BLOCKS, Kind.BLOCK_SET):
        return [
            item if item is UNKNOWN else _check_fields(f.fields, item, f"{path}[{index}].", failures)
            for index, item in enumerate(value)
        ]
    return value


def _conflicts(f: Field, result: Mapping[str, Any], path: str) -> list[tuple[str, str]]:
    return [
        (
            path + f.name,
            f'Conflicting configuration arguments. "{f.snake}": conflicts with {Field(conflict).snake}',
        )
        for conflict in f.conflicts
        if result.get(conflict) is not None
    ]

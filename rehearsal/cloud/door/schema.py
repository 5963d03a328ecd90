"""Checks JSON against the schemas of a discovery document, as strictly as Google's front ends do.

A schema is compiled once into a closure. Rules: https://developers.google.com/discovery/v1/type-format and
the JSON mapping of proto3 (64-bit integers as strings or numbers, null for "not set"). Properties that
are marked read-only are accepted and left to the service to ignore, as Google does.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.door import lengths


@dataclass(frozen=True)
class Violation:
    """A violation in Google's words, and its field (`node.data_disks[0]`)."""

    field: str
    description: str


Check = Callable[[Any, str, list[Violation]], None]

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_DURATION = re.compile(r"-?\d{1,12}(\.\d{1,9})?s")
_FIELD_MASK = re.compile(r"([A-Za-z_][\w.]*(,\s*[A-Za-z_][\w.]*)*)?")
_STRING_FORMATS = {
    "google-datetime": _RFC3339,
    "date-time": _RFC3339,
    "date": _DATE,
    "google-duration": _DURATION,
    "google-fieldmask": _FIELD_MASK,
}
_INTEGERS = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}


def snake(name: str) -> str:
    """`networkConfig` as Google's messages spell it: `network_config`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def camel(name: str) -> str:
    """`update_mask` as JSON spells it: `updateMask`."""
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def refusal(violations: list[Violation]) -> ApiError:
    """Return the 400 that lists every violation."""
    details: JsonObject = {
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [{"field": v.field, "description": v.description} for v in violations],
    }
    text = "\n".join(violation.description for violation in violations)
    return ApiError(400, "INVALID_ARGUMENT", text, reason="invalid", details=[details])


class Schemas:
    """The schemas of one document, compiled when first needed.

    `answers`: for what a server sends, which has one form only: 64-bit integers as strings, no null, and a
    message of a type of this document behind `@type`.
    """

    def __init__(self, schemas: Mapping[str, JsonObject], *, answers: bool = False) -> None:
        self._schemas = schemas
        self._answers = answers
        self._checks: dict[str, Check] = {}

    def named(self, name: str) -> Check:
        """Return the check of a schema; recursive schemas refer to themselves through this table."""
        if name not in self._checks:
            self._checks[name] = lambda value, path, violations: self._checks[name](value, path, violations)
            self._checks[name] = self.compile(self._schemas[name])
        return self._checks[name]

    def required(self, name: str, method_id: str) -> list[str]:
        """Properties without which a creating method refuses the body.

        The annotations of changing methods are not enforced by Google: the official provider patches
        firewalls without the name that they require.
        """
        if not method_id.endswith((".insert", ".createSnapshot")):
            return []
        properties = self._schemas[name].get("properties", {})
        return [
            key
            for key, schema in properties.items()
            if method_id in schema.get("annotations", {}).get("required", ())
        ]

    def compile(self, schema: JsonObject) -> Check:
        """Return the check of an inline schema."""
        if "$ref" in schema:
            name = schema["$ref"]
            return lambda value, path, violations: self.named(name)(value, path, violations)
        kind = schema.get("type")
        if kind == "array":
            return _array(self.compile(schema["items"]))
        if kind == "object":
            if "properties" in schema:
                return self._object(schema["properties"])
            if "additionalProperties" in schema:
                values = schema["additionalProperties"]
                if self._answers and "@type" in values.get("description", ""):
                    return self._message
                return _mapping(self.compile(values))
            if schema.get("format") != "google.protobuf.Any":
                return self._object({})
        return scalar(schema, answers=self._answers)

    def _message(self, value: Any, path: str, violations: list[Violation]) -> None:
        """Check a message with its type in `@type`; types of other documents pass."""
        kind = str(value.get("@type", "")).rpartition(".")[2]
        if not kind:
            violations.append(Violation(path, f"Invalid value at '{path}' (Any): no @type"))
        elif kind in self._schemas:
            self.named(kind)({key: item for key, item in value.items() if key != "@type"}, path, violations)

    def _object(self, properties: Mapping[str, JsonObject]) -> Check:
        checks = {key: (self.compile(schema), snake(key)) for key, schema in properties.items()}

        def check(value: Any, path: str, violations: list[Violation]) -> None:
            if not isinstance(value, dict):
                violations.append(_invalid(path, "type.googleapis.com/google.protobuf.Struct", value))
                return
            for key, item in value.items():
                known = checks.get(key)
                if known is None:
                    # The provider's acceptance test TestAccComputeNetwork_mtuAndUpdate sends an unknown null.
                    if item is not None or self._answers:
                        violations.append(_unknown(key, path))
                elif item is not None or self._answers:
                    known[0](item, f"{path}.{known[1]}" if path else known[1], violations)

        return check


def scalar(schema: JsonObject, *, answers: bool = False) -> Check:
    """Return the check of a string, number, boolean or `any`."""
    kind, form = schema.get("type"), schema.get("format", "")
    form_of_numbers = str if kind == "string" else int | float
    if kind == "boolean":
        return _typed("TYPE_BOOL", lambda value: isinstance(value, bool))
    if form in _INTEGERS:
        low, high = _INTEGERS[form]
        return _typed(
            f"TYPE_{form.upper()}",
            lambda value: (
                _is_integer(value, low, high) and (not answers or isinstance(value, form_of_numbers))
            ),
        )
    if kind in ("integer", "number"):
        return _typed("TYPE_DOUBLE" if kind == "number" else "TYPE_INT32", _is_number)
    if kind != "string":
        return lambda value, path, violations: None
    if "enum" in schema:
        allowed = frozenset(schema["enum"])
        return _typed("TYPE_ENUM", lambda value: isinstance(value, str) and value in allowed)
    if form == "byte":
        return _typed("TYPE_BYTES", _is_base64)
    if form in _STRING_FORMATS:
        pattern = _STRING_FORMATS[form]
        return _typed("TYPE_STRING", lambda value: isinstance(value, str) and bool(pattern.fullmatch(value)))
    if "pattern" in schema and not schema.get("readOnly"):
        return matching(schema["pattern"])
    given = not answers and not schema.get("readOnly")
    if given and (limits := lengths.limits(schema.get("description", ""))):
        return _long(*limits)
    return _typed("TYPE_STRING", lambda value: isinstance(value, str))


def matching(pattern: str) -> Check:
    """Return the check of a string that must match as a whole."""
    compiled = re.compile(pattern)

    def check(value: Any, path: str, violations: list[Violation]) -> None:
        if not isinstance(value, str):
            violations.append(_invalid(path, "TYPE_STRING", value))
        elif not compiled.fullmatch(value):
            text = f"Invalid value for field '{path}': '{value}'. Must be a match of regex '{pattern}'"
            violations.append(Violation(path, text))

    return check


def _long(least: int, most: int) -> Check:
    """Return the check of a string of so many characters; an empty one is a field that isn't set."""

    def check(value: Any, path: str, violations: list[Violation]) -> None:
        if not isinstance(value, str):
            violations.append(_invalid(path, "TYPE_STRING", value))
        elif value and not least <= len(value) <= most:
            text = f"Invalid value at '{path}': must be {least} to {most} characters, not {len(value)}"
            violations.append(Violation(path, text))

    return check


def _array(item_check: Check) -> Check:
    def check(value: Any, path: str, violations: list[Violation]) -> None:
        if not isinstance(value, list):
            violations.append(_invalid(path, "TYPE_ARRAY", value))
            return
        for index, item in enumerate(value):
            if item is not None:
                item_check(item, f"{path}[{index}]", violations)

    return check


def _mapping(item_check: Check) -> Check:
    def check(value: Any, path: str, violations: list[Violation]) -> None:
        if not isinstance(value, dict):
            violations.append(_invalid(path, "type.googleapis.com/google.protobuf.Struct", value))
            return
        for index, item in enumerate(value.values()):
            if item is not None:
                item_check(item, f"{path}[{index}].value", violations)

    return check


def _typed(name: str, fits: Callable[[Any], bool]) -> Check:
    def check(value: Any, path: str, violations: list[Violation]) -> None:
        if not fits(value):
            violations.append(_invalid(path, name, value))

    return check


def _invalid(path: str, kind: str, value: Any) -> Violation:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Violation(path, f"Invalid value at '{path}' ({kind}), {shown[:200]}")


def _unknown(key: str, path: str) -> Violation:
    place = f" at '{path}'" if path else ""
    return Violation(path, f'Invalid JSON payload received. Unknown name "{key}"{place}: Cannot find field.')


def _is_integer(value: Any, low: int, high: int) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, str):
        return bool(re.fullmatch(r"-?\d{1,20}", value)) and low <= int(value) <= high
    if isinstance(value, float):
        return value.is_integer() and low <= value <= high
    return isinstance(value, int) and low <= value <= high


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_base64(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    text = value.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True

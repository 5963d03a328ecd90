"""Partial responses: the `fields` parameter, which trims a JSON answer.

Syntax: https://cloud.google.com/storage/docs/json_api#partial-response (`items/name`, `a(b,c)`, `*`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from rehearsal.cloud.core.errors import bad_request

# Field → what of it is wanted; an empty mask wants all.
Mask = dict[str, "Mask"]


def trim(answer: Any, fields: str) -> Any:
    """Return the parts of the answer that `fields` selects."""
    return _apply(answer, parse(fields))


@lru_cache(maxsize=128)
def parse(fields: str) -> Mask:
    """Parse the mask of a `fields` parameter; ApiError 400 if it is malformed."""
    tokens = re.findall(r"[A-Za-z0-9_@.*-]+|[/(),]", fields)
    if "".join(tokens) != re.sub(r"\s", "", fields):
        raise bad_request(f"Invalid field selection {fields}")
    mask = _selection(tokens, fields)
    if tokens:
        raise bad_request(f"Invalid field selection {fields}")
    return mask


def _selection(tokens: list[str], fields: str) -> Mask:
    mask: Mask = {}
    while True:
        if not tokens or tokens[0] in "/(),":
            raise bad_request(f"Invalid field selection {fields}")
        level = mask.setdefault(tokens.pop(0), {})
        while tokens and tokens[0] == "/":
            tokens.pop(0)
            if not tokens:
                raise bad_request(f"Invalid field selection {fields}")
            level = level.setdefault(tokens.pop(0), {})
        if tokens and tokens[0] == "(":
            tokens.pop(0)
            level.update(_selection(tokens, fields))
            if not tokens or tokens.pop(0) != ")":
                raise bad_request(f"Invalid field selection {fields}")
        if not tokens or tokens[0] != ",":
            return mask
        tokens.pop(0)


def _apply(value: Any, mask: Mask) -> Any:
    if not mask:
        return value
    if isinstance(value, list):
        return [_apply(item, mask) for item in value]
    if not isinstance(value, dict):
        return value
    if "*" in mask:
        return {key: _apply(item, mask["*"]) for key, item in value.items()}
    return {
        key: _apply(value[key], inner) if inner else value[key] for key, inner in mask.items() if key in value
    }

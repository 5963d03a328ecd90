"""Spelling of field names in YAML and in stack outputs."""

from __future__ import annotations


def camel_case(name: str) -> str:
    """Return a field's name in YAML and in a stack's outputs: `bucket_name` is written `bucketName`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)

"""The YAML or JSON of a definition, as plain values whose maps know the line that they begin in."""

from __future__ import annotations

from typing import Any

import yaml

from rehearsal.cloud.services.workflows.engine.values import SourceError

MAX_BYTES = 128 << 10  # https://cloud.google.com/workflows/quotas


class Map(dict[str, Any]):
    """A mapping with its place, counted from 1."""

    line = 1
    column = 1


class _Loader(yaml.SafeLoader):
    """PyYAML's, whose keys must be text and not occur twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Map:
    loader.flatten_mapping(node)
    result = Map()
    result.line, result.column = node.start_mark.line + 1, node.start_mark.column + 1
    for key_node, value_node in node.value:
        key, line = loader.construct_object(key_node), key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise SourceError(f"line {line}: the key {key!r} must be a string")
        if key in result:
            raise SourceError(f"line {line}: the key '{key}' stands twice in one map")
        result[key] = loader.construct_object(value_node, deep=True)
    return result


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
# A date is text, as in JSON.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)


def read(source: str) -> Any:
    """SourceError for what isn't YAML, or is too large."""
    if len(source.encode()) > MAX_BYTES:
        raise SourceError(f"the source has {len(source.encode())} bytes; at most {MAX_BYTES} are allowed")
    try:
        return yaml.load(source, _Loader)
    except yaml.YAMLError as error:
        raise SourceError(f"parse error: {error}") from None

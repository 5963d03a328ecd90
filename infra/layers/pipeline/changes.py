"""Rule of `pipeline:changes`: keys of the job's configuration, and values of their type.

The job declares them in workload/preprocess/config.py, which can't be imported here; a test holds both equal.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from infra.errors import Problem
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings
from settings_schema.parser import nearest

TYPES: dict[str, type] = {
    "input.format": str,
    "input.field": str,
    "input.max_document_mb": int,
    "input.max_unusable_fraction": float,
    "filters.script": str,
    "filters.min_characters": int,
    "filters.min_alphanumeric_fraction": float,
    "filters.max_repeated_line_fraction": float,
    "filters.max_replacement_fraction": float,
    "dedup.method": str,
    "dedup.ngram_words": int,
    "dedup.bands": int,
    "dedup.band_hashes": int,
    "tokenizer.name": str,
    "tokenizer.end": str,
    "output.shards": int,
    "output.sequence_length": int,
    "runtime.partitions": int,
    "runtime.piece_mib": int,
}
OF_RUNS = {"input.sources": "the folder that was submitted", "output.url": "a folder of tokens/"}
"""Keys that each run sets itself."""
_WORDS = {int: "a whole number", float: "a number", str: "text"}


def problems(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield changes that a batch would end with, minutes after it is billed."""
    desired = settings.get(PipelineSettings)
    for number, change in enumerate(desired.changes if desired else ()):
        path, (key, _, text) = f"pipeline:changes[{number}]", change.partition("=")
        if key in OF_RUNS:
            yield Problem(path, f'"{change}"', f"each run sets {key}: {OF_RUNS[key]}", "remove it")
        elif key not in TYPES:
            near = nearest(key, TYPES)
            rule = f"a key of the job's configuration: {', '.join(TYPES)}"
            yield Problem(path, f'"{change}"', rule, f"perhaps {near} was meant" if near else "remove it")
        elif not _is(TYPES[key], _value(text.strip())):
            yield Problem(path, f'"{change}"', f"{key} is {_WORDS[TYPES[key]]}", "correct the value")


def _value(text: str) -> Any:
    """Return the value of a change, as the job reads it: TOML, else a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _is(kind: type, value: Any) -> bool:
    return type(value) is kind or (kind is float and type(value) is int)

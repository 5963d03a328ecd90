"""Rule of `pipeline:changes`: keys of the job's configuration, each with its type and rule.

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
from settings_schema.rules import Rule, at_least, between, one_of, pattern

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
_SHARE = between(0, 1)
_PLACE = r"gs://[^/\s]+/\S{1,500}"
RULES: dict[str, Rule] = {
    "input.format": one_of("auto", "text", "lines", "parquet"),
    "input.field": Rule(bool, "the name of a field"),
    "input.max_document_mb": between(1, 1000),
    "input.max_unusable_fraction": _SHARE,
    "filters.min_characters": at_least(1),
    "filters.min_alphanumeric_fraction": _SHARE,
    "filters.max_repeated_line_fraction": _SHARE,
    "filters.max_replacement_fraction": _SHARE,
    "dedup.method": one_of("none", "exact", "fuzzy"),
    "dedup.ngram_words": between(1, 64),
    "dedup.bands": between(1, 256),
    "dedup.band_hashes": between(1, 64),
    "output.shards": between(1, 65_536),
    "output.sequence_length": at_least(1),
    "runtime.partitions": at_least(0),
    "runtime.piece_mib": at_least(1),
}
PLACES = {
    "tokenizer.name": pattern(f"bytes|{_PLACE}", "`bytes`, or gs://BUCKET/PATH: nodes have no files", ""),
    "filters.script": pattern(f"({_PLACE})?", "gs://BUCKET/PATH: nodes have no files", ""),
}
"""Keys that are paths, which the job alone would also find on its machine."""
OF_RUNS = {"input.sources": "the folder that was submitted", "output.url": "a folder of tokens/"}
"""Keys that each run sets itself."""
_WORDS = {int: "a whole number", float: "a number", str: "text"}


def problems(settings: Settings, given: set[str]) -> Iterator[Problem]:
    """Yield changes that a batch would end with, minutes after it is billed."""
    desired = settings.get(PipelineSettings)
    changed = set[str]()
    for number, change in enumerate(desired.changes if desired else ()):
        path, (key, _, text) = f"pipeline:changes[{number}]", change.partition("=")
        value = _value(text.strip())
        if key in changed:
            yield Problem(path, f'"{change}"', f"{key} is changed once", "remove one of the two")
        elif key in OF_RUNS:
            yield Problem(path, f'"{change}"', f"each run sets {key}: {OF_RUNS[key]}", "remove it")
        elif key not in TYPES:
            near = nearest(key, TYPES)
            rule = f"a key of the job's configuration: {', '.join(TYPES)}"
            yield Problem(path, f'"{change}"', rule, f"perhaps {near} was meant" if near else "remove it")
        elif not _is(TYPES[key], value):
            yield Problem(path, f'"{change}"', f"{key} is {_WORDS[TYPES[key]]}", "correct the value")
        elif (limit := RULES.get(key) or PLACES.get(key)) and not limit.ok(value):
            yield Problem(path, f'"{change}"', f"{key} must be {limit.text}", "correct the value")
        changed.add(key)


def _value(text: str) -> Any:
    """Return the value of a change, as the job reads it: TOML, else a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _is(kind: type, value: Any) -> bool:
    return type(value) is kind or (kind is float and type(value) is int)

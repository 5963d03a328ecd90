"""Log-based metrics: points of the entries that match.

https://cloud.google.com/logging/docs/logs-based-metrics/labels
"""

from __future__ import annotations

import re
from functools import lru_cache

from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError
from rehearsal.cloud.services.logging import filter as logfilter

_EXTRACTOR = re.compile(r'(?:EXTRACT\(([\w.-]+)\)|REGEXP_EXTRACT\(([\w.-]+), "((?:[^"\\]|\\.)*)"\))')


@lru_cache(maxsize=1000)
def matcher(text: str) -> logfilter.Matches:
    """Return the compiled filter, parsed once."""
    return logfilter.parse(text)


def check(body: JsonObject) -> None:
    """Raise ApiError for a metric that isn't emulated: it would count nothing without a notice."""
    matcher(body.get("filter", ""))
    labels = {label["key"] for label in body.get("metricDescriptor", {}).get("labels", ())}
    extractors = body.get("labelExtractors", {})
    if labels != set(extractors):
        raise NotEmulatedError(f"A metric whose labels {sorted(labels)} aren't its extractors'")
    for extractor in (*extractors.values(), *filter(None, [body.get("valueExtractor")])):
        _parts(extractor)


def point(body: JsonObject, entry: JsonObject) -> tuple[dict[str, str], float] | None:
    """Return the labels and the number that a metric makes of an entry; None for one that it doesn't take.

    A counter's number is 1. An entry without the value of a distribution isn't counted, as Google has it.
    """
    if body.get("disabled") or not matcher(body["filter"])(entry):
        return None
    labels = {key: extract(how, entry) or "" for key, how in body.get("labelExtractors", {}).items()}
    how = body.get("valueExtractor")
    if not how:
        return labels, 1.0
    try:
        return labels, float(extract(how, entry) or "")
    except ValueError:
        return None


def extract(extractor: str, entry: JsonObject) -> str | None:
    """Return a field of an entry, or what an expression finds in it."""
    field, pattern = _parts(extractor)
    text = next(iter(logfilter.values(entry, field)), None)
    if text is None or pattern is None:
        return text
    match = re.search(pattern, text)
    return match[1] if match else None


def _parts(extractor: str) -> tuple[str, str | None]:
    parts = _EXTRACTOR.fullmatch(extractor)
    if not parts:
        raise NotEmulatedError(f"The extractor {extractor!r}")
    return parts[1] or parts[2], parts[3]

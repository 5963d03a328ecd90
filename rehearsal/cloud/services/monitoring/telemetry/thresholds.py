"""Threshold conditions: an aligned and reduced number, compared with a threshold.

https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies#MetricThreshold
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.services.monitoring.telemetry.series import Points, Series

Found = dict[tuple[tuple[str, str], ...], float]
"""A number for each set of labels."""

_PART = re.compile(r'(metric\.type|resource\.type|(?:metric|resource)\.labels?\.\w+) *= *"([^"]*)"')
_COMPARE = {"COMPARISON_GT": operator.gt, "COMPARISON_LT": operator.lt}
_ALIGN: dict[str, Callable[[Sequence[float]], float]] = {
    "ALIGN_SUM": sum,
    "ALIGN_COUNT_TRUE": sum,
    "ALIGN_COUNT": len,
    "ALIGN_MAX": max,
    "ALIGN_MEAN": lambda values: sum(values) / len(values),
}
_REDUCE: dict[str, Callable[[Sequence[float]], float]] = {
    "REDUCE_SUM": sum,
    "REDUCE_MAX": max,
    "REDUCE_MIN": min,
    "REDUCE_MEAN": lambda values: sum(values) / len(values),
    "REDUCE_COUNT": len,
}
_KNOWN = {"filter", "comparison", "thresholdValue", "duration", "aggregations", "trigger"}


def check(condition: JsonObject) -> None:
    """Raise ApiError for conditions that Google refuses or that aren't emulated."""
    if unknown := {key for key, value in condition.items() if value} - _KNOWN:
        raise NotEmulatedError(f"Of a threshold {', '.join(sorted(unknown))}")
    given = _filter(condition["filter"])
    if lacking := {"metric.type", "resource.type"} - given.keys():
        names = " and ".join(f'"{name}"' for name in sorted(lacking))
        raise bad_request(
            f"The supplied filter does not specify a restriction on {names}: {condition['filter']}"
        )
    _aggregation(condition)
    if condition.get("comparison") not in _COMPARE:
        raise bad_request("A threshold's comparison is COMPARISON_GT or COMPARISON_LT.")


def metric(condition: JsonObject) -> str:
    """Return the type of the metric that a threshold is on."""
    return _filter(condition["filter"])["metric.type"]


def evaluate(condition: JsonObject, points: Points, now_s: float) -> Found:
    """Return the series for which a threshold is crossed, by their labels."""
    given = _filter(condition["filter"])
    period_s, align, reduce, by = _aggregation(condition)
    groups: dict[tuple[tuple[str, str], ...], list[float]] = defaultdict(list)
    for series in points.of(given["metric.type"], given["resource.type"]):
        if not all(_label(series, path) == value for path, value in given.items() if "label" in path):
            continue
        if values := series.within(now_s - period_s, now_s):
            labels = tuple((path.rpartition(".")[2], _label(series, path)) for path in by)
            groups[labels].append(align(values))
    compare, threshold = _COMPARE[condition["comparison"]], float(condition.get("thresholdValue") or 0)
    reduced = {labels: reduce(values) for labels, values in groups.items()}
    return {labels: value for labels, value in reduced.items() if compare(value, threshold)}


@lru_cache(maxsize=1000)
def _filter(text: str) -> Mapping[str, str]:
    parts = dict(_PART.findall(text))
    if re.sub(r"\s*(AND)?\s*", "", _PART.sub("", text)):
        raise NotEmulatedError(f"The filter {text!r} of a condition")
    return parts


def _aggregation(
    condition: JsonObject,
) -> tuple[float, Callable[[Sequence[float]], float], Callable[[Sequence[float]], float], tuple[str, ...]]:
    several = condition.get("aggregations") or []
    if len(several) != 1:
        raise NotEmulatedError(f"A threshold with {len(several)} aggregations")
    (aggregation,) = several
    aligner, reducer = aggregation.get("perSeriesAligner"), aggregation.get("crossSeriesReducer")
    if aligner not in _ALIGN or reducer not in _REDUCE:
        raise NotEmulatedError(f"An aggregation by {aligner} and {reducer}")
    period_s = float(str(aggregation.get("alignmentPeriod", "")).removesuffix("s") or 0)
    if period_s < 60:  # https://cloud.google.com/monitoring/api/v3/aggregation
        raise bad_request("The alignment period must be at least 60 seconds.")
    return period_s, _ALIGN[aligner], _REDUCE[reducer], tuple(aggregation.get("groupByFields") or ())


def _label(series: Series, path: str) -> str:
    kind, _, name = path.partition(".")[0], "", path.rpartition(".")[2]
    return (series.metric_labels if kind == "metric" else series.resource_labels).get(name, "")

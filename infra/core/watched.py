"""Metrics of a layer's log entries, and its alerts, as it declares them; the monitoring layer makes them.

A metric without a value counts entries; one with a value is a distribution of it, whose mean a query gets as
sum over count. Filters are of https://cloud.google.com/logging/docs/view/logging-query-language. Two kinds of
conditions: `Count` compares a number of points with a threshold; `Query` is PromQL, for means and for what is
missing. Each alert has a page `docs/runbooks/NAME.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.settings.schema import Settings

HOST, AUDIT, BUCKET, BATCH = "generic_node", "audited_resource", "gcs_bucket", "cloud_dataproc_batch"
FUNCTION, SCHEDULE = "cloud_run_revision", "cloud_scheduler_job"
"""Monitored resources of the entries: https://cloud.google.com/monitoring/api/resources."""


@dataclass(frozen=True, kw_only=True)
class LogMetric:
    """A metric.

    Attributes:
        name: last part of its name.
        about: what it counts, or is the distribution of.
        resource: type of the entries' resource.
        filter: which entries, beside the resource; `{log}` and `{vitals}` are filled in.
        own: which entries are this environment's; of hosts, audits and buckets the monitoring layer says it.
        labels: label → extractor.
        value: extractor of the value, for a distribution.
        unit: of the value, in UCUM.
        hardware: whether only hosts with chips report the value.
    """

    name: str
    about: str
    resource: str
    filter: str
    own: Callable[[Settings], str] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    value: str = ""
    unit: str = "1"
    hardware: bool = False


def full_name(metric: str, settings: Settings) -> str:
    """Return the metric's name in Cloud Logging."""
    return f"tpu-{settings.environment}-{metric}"


def metric_type(metric: str, settings: Settings) -> str:
    """Return the metric's type in Cloud Monitoring."""
    return f"logging.googleapis.com/user/{full_name(metric, settings)}"


def promql_name(metric: str, settings: Settings) -> str:
    """Return the metric's name in PromQL: https://cloud.google.com/monitoring/promql/promql-mapping."""
    domain, _, rest = metric_type(metric, settings).partition("/")
    return ":".join("".join(c if c.isalnum() else "_" for c in part) for part in (domain, rest))


@dataclass(frozen=True)
class Count:
    """More than the threshold's number of points of a metric within `window_s` seconds.

    `metric` is one of ours, or one of Google's by its type; `by`: labels, an incident each.
    """

    metric: LogMetric | str
    window_s: int = 300
    by: tuple[str, ...] = ()
    resource: str = HOST
    also: str = ""
    reducer: str = "REDUCE_SUM"  # between series
    aligner: str = "ALIGN_SUM"  # within a series; ALIGN_COUNT_TRUE for points that are true or false

    def arguments(self, settings: Settings, threshold: float) -> dict[str, Any]:
        """Return the condition, as the provider takes it."""
        kind, resource = self.metric, self.resource
        if isinstance(self.metric, LogMetric):
            kind, resource = metric_type(self.metric.name, settings), self.metric.resource
        also = f" AND {self.also}" if self.also else ""
        grouped = {"group_by_fields": [f"metric.label.{label}" for label in self.by]} if self.by else {}
        return {
            "condition_threshold": {
                "filter": f'metric.type="{kind}" AND resource.type="{resource}"{also}',
                "comparison": "COMPARISON_GT",
                "threshold_value": threshold,
                "duration": "0s",
                "aggregations": [
                    {
                        "alignment_period": f"{self.window_s}s",
                        "per_series_aligner": self.aligner,
                        "cross_series_reducer": self.reducer,
                        **grouped,
                    }
                ],
                "trigger": {"count": 1},
            }
        }


@dataclass(frozen=True)
class Query:
    """A PromQL expression that has a value for `for_s` seconds on end."""

    expression: Callable[[Settings, float], str]
    for_s: int = 300

    def arguments(self, settings: Settings, threshold: float) -> dict[str, Any]:
        """Return the condition, as the provider takes it. No metric needs to have points yet."""
        return {
            "condition_prometheus_query_language": {
                "query": self.expression(settings, threshold),
                "duration": f"{self.for_s}s",
                "evaluation_interval": "60s",
                "disable_metric_validation": True,
            }
        }


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert.

    Attributes:
        name: of the alert, and of its page.
        means: one line.
        severity: CRITICAL, ERROR or WARNING, as Google shows it.
        conditions: by what they are called; one that holds is enough.
        threshold, low, high, unit: from where on it fires, and what the settings may say instead.
        below: it fires where less is measured, and not more.
    """

    name: str
    means: str
    severity: str
    conditions: Mapping[str, Count | Query]
    threshold: float
    low: float
    high: float
    unit: str
    below: bool = False


def summed(metric: LogMetric, settings: Settings, window: str, by: tuple[str, ...], part: str = "") -> str:
    """PromQL: the points of one of our metrics within a window, or a `_sum` or `_count` of these."""
    labels = f" by ({', '.join(by)})" if by else ""
    resource = f'{{monitored_resource="{metric.resource}"}}'
    return f"sum{labels} (increase({promql_name(metric.name, settings)}{part}{resource}[{window}]))"


def mean(metric: LogMetric, settings: Settings, window: str, by: tuple[str, ...]) -> str:
    """PromQL: the mean of a distribution within a window."""
    parts = (summed(metric, settings, window, by, part) for part in ("_sum", "_count"))
    return " / ".join(parts)

"""The alerts: a condition each, what it means, and how bad it is. docs/monitoring.md is made from this table.

Two kinds of conditions: `Count` compares a number of points with a threshold; `Query` is PromQL, for means
and for what is missing. Each has a page `docs/runbooks/NAME.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.layers.monitoring import metrics
from infra.layers.monitoring.metrics import promql_name
from infra.layers.monitoring.prices import dollars_per_chip_hour
from infra.settings.schema import Settings

NODE = ("node",)


@dataclass(frozen=True)
class Count:
    """More than the threshold's number of points of a metric within `window_s` seconds.

    `metric` is one of ours by its name, or one of Google's by its type; `by`: labels, an incident each.
    """

    metric: str
    window_s: int = 300
    by: tuple[str, ...] = ()
    resource: str = metrics.HOST
    also: str = ""
    reducer: str = "REDUCE_SUM"  # between series
    aligner: str = "ALIGN_SUM"  # within a series; ALIGN_COUNT_TRUE for points that are true or false

    def arguments(self, settings: Settings, threshold: float) -> dict[str, Any]:
        """Return the condition, as the provider takes it."""
        own = self.metric in metrics.OF
        kind = metrics.metric_type(self.metric, settings) if own else self.metric
        resource = metrics.OF[self.metric].resource if own else self.resource
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


def summed(metric: str, settings: Settings, window: str, by: tuple[str, ...], part: str = "") -> str:
    """PromQL: the points of one of our metrics within a window, or a `_sum` or `_count` of these."""
    labels = f" by ({', '.join(by)})" if by else ""
    resource = f'{{monitored_resource="{metrics.OF[metric].resource}"}}'
    return f"sum{labels} (increase({promql_name(metric, settings)}{part}{resource}[{window}]))"


def mean(metric: str, settings: Settings, window: str, by: tuple[str, ...]) -> str:
    """PromQL: the mean of a distribution within a window."""
    parts = (summed(metric, settings, window, by, part) for part in ("_sum", "_count"))
    return " / ".join(parts)


def _mean(metric: str, comparison: str, window: str = "10m", scale: float = 1.0) -> Callable[..., str]:
    def expression(settings: Settings, threshold: float) -> str:
        return f"{mean(metric, settings, window, NODE)} {comparison} {threshold * scale:g}"

    return expression


def _idle(settings: Settings, _: float) -> str:
    """Up in nearly all of the last 30 minutes, and no job ran in any of them."""
    up = summed("chips", settings, "30m", NODE, "_count")
    return f"{up} > 25 unless {summed('running', settings, '30m', NODE)} > 0"


def spend(settings: Settings, window: str = "10m") -> str:
    """PromQL: dollars an hour of all nodes that are up, by the catalog's price of each zone."""
    parts = []
    for zone, dollars in dollars_per_chip_hour(settings).items():
        labels = f'{{monitored_resource="{metrics.HOST}", zone="{zone}"}}'
        name = promql_name("chips", settings)
        total, count = (
            f"sum by (node) (increase({name}{part}{labels}[{window}]))" for part in ("_sum", "_count")
        )
        parts.append(f"(sum({total} / {count}) * {dollars:g} or vector(0))")
    return " + ".join(parts)


def _spend(settings: Settings, threshold: float) -> str:
    return f"{spend(settings)} > {threshold:g}"


def _sweeps(settings: Settings, _: float) -> str:
    """Two failed within 65 min, and so of two in succession at any `pipeline:sweepMinutes`."""
    return f"{summed('sweeps-failed', settings, '65m', ('job',))} > 1"


ALERTS = (
    Alert(
        name="boot-failed",
        means="a host's boot failed: nothing of the job runs on it",
        severity="CRITICAL",
        conditions={"a boot failed": Count("boot-failed", by=NODE)},
        threshold=0, low=0, high=1000, unit="boots in 5 min",
    ),
    Alert(
        name="job-failing",
        means="a job is started again and again: errors of the TPU runtime or of the program",
        severity="ERROR",
        conditions={"starts failed": Count("job-failed", 1800, NODE, reducer="REDUCE_MAX")},
        threshold=2, low=0, high=1000, unit="failed starts in 30 min",
    ),
    Alert(
        name="run-stalled",
        means="a run stands still: its process lives, its step doesn't advance",
        severity="ERROR",
        conditions={"no step": Query(_mean("step-age", ">", "5m"))},
        threshold=1800, low=60, high=86400, unit="s without a step",
    ),
    Alert(
        name="checkpoint-old",
        means="the newest checkpoint is too old: a preemption now would cost that much",
        severity="ERROR",
        conditions={"no checkpoint": Query(_mean("checkpoint-age", ">", "5m"))},
        threshold=7200, low=60, high=604800, unit="s since a checkpoint",
    ),
    Alert(
        name="checkpoint-failed",
        means="saving checkpoints fails",
        severity="ERROR",
        conditions={"saves failed": Count("checkpoint-failed", 1800, NODE)},
        threshold=1, low=0, high=1000, unit="failed saves in 30 min",
    ),
    Alert(
        name="loss-not-finite",
        means="a loss or gradient is no number any more: the run ended, and ends so again",
        severity="CRITICAL",
        conditions={"no number": Count("loss-not-finite", by=NODE)},
        threshold=0, low=0, high=1000, unit="steps in 5 min",
    ),
    Alert(
        name="goodput-low",
        means="little of the time goes into steps",
        severity="WARNING",
        conditions={"goodput": Query(_mean("goodput", "<", "30m", 0.01), 1800)},
        threshold=50, low=1, high=99, unit="% of the time, in the mean of 30 min", below=True,
    ),
    Alert(
        name="data-stall",
        means="the chips wait for examples",
        severity="WARNING",
        conditions={"waiting for data": Query(_mean("data-stall", ">", "15m", 0.01), 900)},
        threshold=20, low=1, high=99, unit="% of the time, in the mean of 15 min",
    ),
    Alert(
        name="chips-idle",
        means="chips are paid for and idle: no job runs on a node that is up, or it hardly computes",
        severity="WARNING",
        conditions={
            "no job runs": Query(_idle),
            "duty cycle": Query(_mean("duty-cycle", "<", "30m"), 1800),
        },
        threshold=5, low=1, high=99, unit="% duty cycle, in the mean of 30 min", below=True,
    ),
    Alert(
        name="preemption-storm",
        means="Google takes back many nodes within an hour",
        severity="WARNING",
        conditions={"terminations": Count("terminations", 3600)},
        threshold=3, low=0, high=10000, unit="nodes in 1 h",
    ),
    Alert(
        name="creation-refused",
        means="nodes can't be created: no capacity, no quota or no right",
        severity="WARNING",
        conditions={"refusals": Count("creations-refused", 3600)},
        threshold=5, low=0, high=10000, unit="refusals in 1 h",
    ),
    Alert(
        name="quota-exceeded",
        means="a request was refused because a quota of the project is used up",
        severity="WARNING",
        conditions={
            "quota": Count(
                "serviceruntime.googleapis.com/quota/exceeded",
                resource="consumer_quota",
                aligner="ALIGN_COUNT_TRUE",
            )
        },
        threshold=0, low=0, high=10000, unit="refusals in 5 min",
    ),
    Alert(
        name="spend-high",
        means="the nodes that are up cost more an hour than they may, by the catalog's prices",
        severity="ERROR",
        conditions={"dollars an hour": Query(_spend)},
        threshold=100, low=1, high=1_000_000, unit="$/h",
    ),
    Alert(
        name="bucket-public",
        means="everybody was granted a role on a bucket",
        severity="CRITICAL",
        conditions={"granted to everybody": Count("bucket-public", by=("bucket",))},
        threshold=0, low=0, high=1000, unit="grants in 5 min",
    ),
    Alert(
        name="bucket-access-changed",
        means="who may read or write a bucket was changed; `up` of a layer does that, too",
        severity="WARNING",
        conditions={"access changed": Count("bucket-access-changed", by=("bucket",))},
        threshold=0, low=0, high=1000, unit="changes in 5 min",
    ),
    Alert(
        name="batch-failed",
        means="a Spark batch failed, was cancelled or ran out of its time",
        severity="ERROR",
        conditions={"batches failed": Count("batches-failed", by=("batch",))},
        threshold=0, low=0, high=1000, unit="batches in 5 min",
    ),
    Alert(
        name="pipeline-failed",
        means="a run of the pipeline failed, or its sweeps do",
        severity="ERROR",
        conditions={
            "runs failed": Count("runs-failed", by=("outcome",)),
            "sweeps failed": Query(_sweeps, 0),
        },
        threshold=0, low=0, high=1000, unit="failed runs in 5 min",
    ),
)  # fmt: skip
OF = {alert.name: alert for alert in ALERTS}

"""Alerts: a condition each, its meaning and its severity. docs/reference/monitoring.md lists them.

Other layers declare theirs in their `hooks.alerts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from infra.core.layer import Layer
from infra.core.watched import HOST, Alert, Count, Query, mean, promql_name, summed
from infra.layers.monitoring.metrics import OF as METRIC
from infra.layers.monitoring.prices import dollars_per_chip_hour
from infra.settings.schema import Settings

NODE = ("node",)


def _mean(metric: str, comparison: str, window: str = "10m", scale: float = 1.0) -> Callable[..., str]:
    def expression(settings: Settings, threshold: float) -> str:
        return f"{mean(METRIC[metric], settings, window, NODE)} {comparison} {threshold * scale:g}"

    return expression


def _idle(settings: Settings, _: float) -> str:
    """Up in nearly all of the last 30 minutes, and no job ran in any of them."""
    up = summed(METRIC["chips"], settings, "30m", NODE, "_count")
    running = summed(METRIC["running"], settings, "30m", NODE)
    return f"{up} > 25 unless {running} > 0"


def spend(settings: Settings, window: str = "10m") -> str:
    """PromQL: dollars an hour of all nodes that are up, by the catalog's price of each zone."""
    parts = []
    for zone, dollars in dollars_per_chip_hour(settings).items():
        labels = f'{{monitored_resource="{HOST}", zone="{zone}"}}'
        name = promql_name("chips", settings)
        total, count = (
            f"sum by (node) (increase({name}{part}{labels}[{window}]))" for part in ("_sum", "_count")
        )
        parts.append(f"(sum({total} / {count}) * {dollars:g} or vector(0))")
    return " + ".join(parts)


ALERTS = (
    Alert(
        name="boot-failed",
        means="a host's boot failed: its job doesn't start",
        severity="CRITICAL",
        conditions={"a boot failed": Count(METRIC["boot-failed"], by=NODE)},
        threshold=0, low=0, high=1000, unit="failed boots in 5 min",
    ),
    Alert(
        name="job-failing",
        means="a job fails and restarts repeatedly: errors of the TPU runtime or of the program",
        severity="ERROR",
        conditions={"starts failed": Count(METRIC["job-failed"], 1800, NODE, reducer="REDUCE_MAX")},
        threshold=2, low=0, high=1000, unit="failed starts in 30 min",
    ),
    Alert(
        name="run-stalled",
        means="a run is stuck: the process lives, the step doesn't advance",
        severity="ERROR",
        conditions={"no step": Query(_mean("step-age", ">", "5m"))},
        threshold=1800, low=60, high=86400, unit="s without a step",
    ),
    Alert(
        name="checkpoint-old",
        means="the newest checkpoint is too old: a preemption would lose the steps since",
        severity="ERROR",
        conditions={"no checkpoint": Query(_mean("checkpoint-age", ">", "5m"))},
        threshold=7200, low=60, high=604800, unit="s since a checkpoint",
    ),
    Alert(
        name="checkpoint-failed",
        means="saving checkpoints fails",
        severity="ERROR",
        conditions={"saves failed": Count(METRIC["checkpoint-failed"], 1800, NODE)},
        threshold=1, low=0, high=1000, unit="failed saves in 30 min",
    ),
    Alert(
        name="loss-not-finite",
        means="a loss or gradient is NaN or infinite: the run ended, and a restart would end it again",
        severity="CRITICAL",
        conditions={"no number": Count(METRIC["loss-not-finite"], by=NODE)},
        threshold=0, low=0, high=1000, unit="non-finite steps in 5 min",
    ),
    Alert(
        name="goodput-low",
        means="too little of the time is spent on steps",
        severity="WARNING",
        conditions={"goodput": Query(_mean("goodput", "<", "30m", 0.01), 1800)},
        threshold=50, low=1, high=99, unit="% of the time, mean of 30 min", below=True,
    ),
    Alert(
        name="data-stall",
        means="the chips wait for examples",
        severity="WARNING",
        conditions={"waiting for data": Query(_mean("data-stall", ">", "15m", 0.01), 900)},
        threshold=20, low=1, high=99, unit="% of the time, mean of 15 min",
    ),
    Alert(
        name="chips-idle",
        means="a running node has no job, or a low duty cycle",
        severity="WARNING",
        conditions={
            "no job runs": Query(_idle),
            "duty cycle": Query(_mean("duty-cycle", "<", "30m"), 1800),
        },
        threshold=5, low=1, high=99, unit="% duty cycle, mean of 30 min", below=True,
    ),
    Alert(
        name="preemption-storm",
        means="Google preempts many nodes within an hour",
        severity="WARNING",
        conditions={"terminations": Count(METRIC["terminations"], 3600)},
        threshold=3, low=0, high=10000, unit="nodes in 1 h",
    ),
    Alert(
        name="creation-refused",
        means="nodes can't be created: no capacity, quota or permission",
        severity="WARNING",
        conditions={"refusals": Count(METRIC["creations-refused"], 3600)},
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
        means="running nodes cost more per hour than the limit, at list prices",
        severity="ERROR",
        conditions={"dollars an hour": Query(lambda settings, most: f"{spend(settings)} > {most:g}")},
        threshold=100, low=1, high=1_000_000, unit="$/h",
    ),
    Alert(
        name="bucket-public",
        means="a bucket was made public",
        severity="CRITICAL",
        conditions={"granted to everybody": Count(METRIC["bucket-public"], by=("bucket",))},
        threshold=0, low=0, high=1000, unit="public grants in 5 min",
    ),
    Alert(
        name="bucket-access-changed",
        means="access to a bucket was changed; `tpu up` can cause it",
        severity="WARNING",
        conditions={"access changed": Count(METRIC["bucket-access-changed"], by=("bucket",))},
        threshold=0, low=0, high=1000, unit="changes in 5 min",
    ),
)  # fmt: skip


def of(layers: Iterable[Layer]) -> dict[str, Alert]:
    """Return the alerts above, and those that layers declare, by name."""
    others = (alert for layer in layers for alert in layer.hooks.alerts)
    return {alert.name: alert for alert in (*ALERTS, *others)}

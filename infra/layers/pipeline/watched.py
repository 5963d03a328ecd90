"""Metrics of the pipeline's log entries, and the alerts on them."""

from infra.core.watched import FUNCTION, SCHEDULE, Alert, Count, LogMetric, Query, summed
from infra.layers.pipeline import paths
from infra.settings.schema import Settings


def _function(settings: Settings) -> str:
    return f'resource.labels.service_name="{paths.name(settings)}"'


def _schedule(settings: Settings) -> str:
    return f'resource.labels.job_id="{paths.name(settings)}"'


_BATCHES_FAILED = LogMetric(
    name="batches-failed",
    about="Spark batches that failed or were cancelled",
    resource=FUNCTION,
    filter='jsonPayload.event="pipeline_batch"',
    own=_function,
    labels={"batch": "EXTRACT(jsonPayload.batch)"},
)
_RUNS_FAILED = LogMetric(
    name="runs-failed",
    about="pipeline runs that failed, or that the function couldn't advance",
    resource=FUNCTION,
    filter='jsonPayload.event:"pipeline_" AND severity>=ERROR',
    own=_function,
    labels={"outcome": "EXTRACT(jsonPayload.outcome)"},
)
_SWEEPS_FAILED = LogMetric(
    name="sweeps-failed",
    about="failed sweeps of the pipeline",
    resource=SCHEDULE,
    filter="severity>=ERROR",
    own=_schedule,
    labels={"job": "EXTRACT(resource.labels.job_id)"},
)
METRICS = (_BATCHES_FAILED, _RUNS_FAILED, _SWEEPS_FAILED)


def _sweeps(settings: Settings, _: float) -> str:
    """Two failed within 65 min, and so of two in succession at any `pipeline:sweepMinutes`."""
    return f"{summed(_SWEEPS_FAILED, settings, '65m', ('job',))} > 1"


ALERTS = (
    Alert(
        name="batch-failed",
        means="a Spark batch failed, was cancelled or exceeded its time limit",
        severity="ERROR",
        conditions={"batches failed": Count(_BATCHES_FAILED, by=("batch",))},
        threshold=0, low=0, high=1000, unit="failed batches in 5 min",
    ),
    Alert(
        name="pipeline-failed",
        means="a pipeline run failed, or sweeps fail",
        severity="ERROR",
        conditions={
            "runs failed": Count(_RUNS_FAILED, by=("outcome",)),
            "sweeps failed": Query(_sweeps, 0),
        },
        threshold=0, low=0, high=1000, unit="failed runs in 5 min",
    ),
)  # fmt: skip

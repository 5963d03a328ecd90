"""Metrics that Cloud Logging makes of log entries: `logging.googleapis.com/user/tpu-ENVIRONMENT-NAME`.

Other layers declare theirs in their `hooks.metrics`. Events are docs/internals/architecture.md's; audit
entries are those of https://cloud.google.com/logging/docs/audit/understanding-audit-logs.
"""

from __future__ import annotations

from collections.abc import Iterable

from infra.core.environment import all_buckets
from infra.core.layer import Layer
from infra.core.watched import AUDIT, BUCKET, HOST, LogMetric
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.slices.names import LOG, VITALS_LOG

NODE = {"node": "EXTRACT(labels.node)"}


def _event(kind: str, log: str = "log") -> str:
    return f'logName="{{{log}}}" AND jsonPayload.event="{kind}"'


def _counted(name: str, kind: str, about: str) -> LogMetric:
    return LogMetric(name=name, about=about, resource=HOST, filter=_event(kind), labels=NODE)


def _measured(name: str, key: str, unit: str, about: str, *, hardware: bool = False) -> LogMetric:
    """Return the metric of a number in heartbeats of jobs."""
    return LogMetric(
        name=name,
        about=about,
        resource=HOST,
        filter=f"{_event('heartbeat', 'vitals')} AND jsonPayload.{key}>=0",
        labels=NODE,
        value=f"EXTRACT(jsonPayload.{key})",
        unit=unit,
        hardware=hardware,
    )


def _audited(service: str, method: str) -> str:
    return f'protoPayload.serviceName="{service}.googleapis.com" AND protoPayload.methodName{method}'


_ACCESS = _audited("storage", '="storage.setIamPermissions"')
_DELTAS = "protoPayload.serviceData.policyDelta.bindingDeltas"

METRICS = (
    LogMetric(
        name="chips",
        about="chips of a running node, reported by its worker 0 each minute",
        resource=HOST,
        filter=_event("alive", "vitals"),
        labels={**NODE, "zone": "EXTRACT(labels.zone)"},
        value="EXTRACT(jsonPayload.chips)",
        unit="{chip}",
    ),
    LogMetric(
        name="boot-failed",
        about="boots of hosts that failed, by stage",
        resource=HOST,
        filter='logName="{log}" AND labels.unit="google-startup-scripts.service" '
        'AND textPayload:"boot failed in stage"',
        labels={**NODE, "stage": 'REGEXP_EXTRACT(textPayload, "boot failed in stage ([a-z-]+)")'},
    ),
    LogMetric(
        name="running",
        about="heartbeats of workers with a running job, one a minute or more",
        resource=HOST,
        filter=f'{_event("heartbeat", "vitals")} AND jsonPayload.state="running"',
        labels=NODE,
    ),
    LogMetric(
        name="job-failed",
        about="failed starts of jobs, by worker",
        resource=HOST,
        filter=f'{_event("heartbeat", "vitals")} AND jsonPayload.state="failed"',
        labels={**NODE, "worker": "EXTRACT(labels.worker)"},
    ),
    _measured("step-age", "step_age_s", "s", "seconds since the job's step, or sample, last advanced"),
    _measured("checkpoint-age", "checkpoint_age_s", "s", "seconds since the newest complete checkpoint"),
    _measured("step-time", "step_s", "s", "seconds per step"),
    _measured("loss", "loss", "1", "training loss"),
    _measured("goodput", "goodput", "1", "share of an attempt's wall time spent on steps"),
    _measured("data-stall", "data_stall", "1", "share of an attempt's wall time spent waiting for examples"),
    _measured(
        "duty-cycle", "duty_cycle_percent", "%", "share of the time that chips computed", hardware=True
    ),
    _measured("memory", "hbm_percent", "%", "share of the chips' memory in use", hardware=True),
    _counted("checkpoints", "save", "checkpoints begun"),
    _counted("checkpoint-failed", "save-failed", "checkpoints that failed"),
    _counted("loss-not-finite", "loss-not-finite", "steps whose loss or gradient was NaN or infinite"),
    LogMetric(
        name="terminations",
        about="nodes that Google preempted or lost",
        resource=AUDIT,
        filter=_audited("tpu", '="tpu.nodes.terminate"'),
    ),
    LogMetric(
        name="creations-refused",
        about="creations of nodes that Google refused: no capacity, quota or permission",
        resource=AUDIT,
        filter=_audited("tpu", ':"Tpu.CreateNode"') + " AND severity>=ERROR",
    ),
    LogMetric(
        name="bucket-access-changed",
        about="changes of access to the buckets",
        resource=BUCKET,
        filter=_ACCESS,
        labels={"bucket": "EXTRACT(resource.labels.bucket_name)"},
    ),
    LogMetric(
        name="bucket-public",
        about="public grants on the buckets",
        resource=BUCKET,
        filter=f'{_ACCESS} AND {_DELTAS}.action="ADD" AND {_DELTAS}.member=~"^all(Authenticated)?Users$"',
        labels={"bucket": "EXTRACT(resource.labels.bucket_name)"},
    ),
)
OF = {metric.name: metric for metric in METRICS}


def of(layers: Iterable[Layer]) -> tuple[LogMetric, ...]:
    """Return the metrics above, and those that layers declare."""
    return (*METRICS, *(metric for layer in layers for metric in layer.hooks.metrics))


def filter_of(metric: LogMetric, settings: Settings) -> str:
    """Return the filter of this environment's entries: another one of the project counts its own."""
    counted = metric.filter.format(
        log=f"projects/{settings.project}/logs/{LOG}",
        vitals=f"projects/{settings.project}/logs/{VITALS_LOG}",
    )
    own = metric.own(settings) if metric.own else _OWN[metric.resource](settings)
    return " AND ".join(filter(None, (f'resource.type="{metric.resource}"', counted, own)))


def of_hosts(settings: Settings) -> str:
    """Return the filter of this environment's hosts, by their bucket.

    Those of an earlier bundle tell no bucket until they boot again: they count in every environment.
    """
    bucket = settings[StorageSettings].bucket_name
    return f'(labels.bucket="{bucket}" OR NOT labels.bucket:*)'


def _of_nodes(settings: Settings) -> str:
    """Return the filter of audit entries: they tell a node's zone, and not whose it is."""
    storage = settings[StorageSettings]
    return "" if storage.allow_cross_region else f'protoPayload.resourceName:"/locations/{storage.location}-"'


def _of_buckets(settings: Settings) -> str:
    return f'resource.labels.bucket_name=~"^({"|".join(all_buckets(settings))})$"'


_OWN = {HOST: of_hosts, AUDIT: _of_nodes, BUCKET: _of_buckets}

"""Metrics of what the controller reports of itself and its queue (slurm/watch.py), and the alerts on them."""

from infra.core.watched import HOST, Alert, Count, LogMetric, Query, mean, promql_name
from infra.settings.schema import Settings

_EVENT = 'logName="{log}" AND jsonPayload.event="slurm-queue"'
_PARTITION = {"partition": "EXTRACT(jsonPayload.partition)"}
_STANDING = LogMetric(
    name="slurm-standing",
    about="seconds that a job has waited while hosts are free, by partition",
    resource=HOST,
    filter=f"{_EVENT} AND jsonPayload.waiting>=1",
    labels=_PARTITION,
    value="EXTRACT(jsonPayload.standing_s)",
    unit="s",
)
_DOWN = LogMetric(
    name="slurm-down",
    about="minutes with hosts down or without a slice, by partition",
    resource=HOST,
    filter=f"{_EVENT} AND jsonPayload.down>=1",
    labels=_PARTITION,
)
_ALIVE = LogMetric(
    name="slurm-alive",
    about="minutes in which the slice daemon ran, by whether slurmctld answered it",
    resource=HOST,
    filter='logName="{log}" AND jsonPayload.event="slurm-alive"',
    labels={"slurmctld": "EXTRACT(jsonPayload.slurmctld)"},
)
METRICS = (_STANDING, _DOWN, _ALIVE)


def _silent(settings: Settings, threshold: float) -> str:
    """PromQL: the daemon ran within a day, and slurmctld hasn't answered it for so many minutes."""
    name, resource = promql_name(_ALIVE.name, settings), f'monitored_resource="{HOST}"'
    ran = f"sum (increase({name}{{{resource}}}[1d]))"
    answered = f'sum (increase({name}{{{resource}, slurmctld="true"}}[{threshold * 60:.0f}s]))'
    return f"{ran} > 0 unless {answered} > 0"


ALERTS = (
    Alert(
        name="slurm-queue-stuck",
        means="a Slurm queue is stuck: jobs wait, hosts are free or requested, no job starts",
        severity="ERROR",
        conditions={"no job begins": Query(
            lambda settings, most: f"{mean(_STANDING, settings, '5m', ('partition',))} > {most:g}"
        )},
        threshold=3600, low=60, high=604800, unit="s without a start of a job",
    ),
    Alert(
        name="slurm-nodes-down",
        means="hosts of a Slurm partition get no jobs: they are down, didn't join, or have no slice",
        severity="WARNING",
        conditions={"hosts are down": Count(_DOWN, 1800, ("partition",))},
        threshold=15, low=0, high=29, unit="min of the last 30 with hosts down",
    ),
    Alert(
        name="slurm-controller-silent",
        means="slurmctld, the slice daemon or their machine is down: idle slices stay billed",
        severity="ERROR",
        conditions={"no answer": Query(_silent, 0)},
        threshold=10, low=5, high=720, unit="min without an answer of slurmctld",
    ),
)  # fmt: skip

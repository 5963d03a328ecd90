"""Proof before a living node is deleted, or counts as ended: never an object in the bucket alone.

All hosts run as one account, so any of them can write any worker's status there. A guest attribute can be
written only through the metadata server of its own machine; the TPU API returns it
(https://cloud.google.com/compute/docs/metadata/manage-guest-attributes). A node's health proves silence, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.model import HEARTBEAT_S, Claim

_UNWELL = frozenset({"TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE"})


@dataclass(frozen=True)
class Attested:
    """Status of a worker, by its own metadata server.

    Attributes:
        boot: state of its boot; empty: unknown.
        boot_s: time of that report, by the host's clock.
        job: `running`, `done` or `failed`; empty: unknown.
        job_s: time of that report.
        final: the failed job isn't started again.
        unread: why its attributes can't be read; empty: they can.
    """

    boot: str = ""
    boot_s: float = 0.0
    job: str = ""
    job_s: float = 0.0
    final: bool = False
    unread: str = ""


def objection(
    claim: Claim, workers: Sequence[Attested], health: str, now_s: float, heartbeat_timeout_s: float
) -> str:
    """Return why the node stays; empty if the claim is proven.

    Args:
        claim: by its statuses in the bucket.
        workers: guest attributes of its workers.
        health: of its machines, by Google.
        now_s: the present.
        heartbeat_timeout_s: time after which a worker that had reported counts as silent.
    """
    newest_s = max((worker.job_s for worker in workers if worker.job == "running"), default=0.0)
    if newest_s > now_s - 2 * HEARTBEAT_S:
        return f"its job reported {now_s - newest_s:.0f} s ago"
    match claim:
        case Claim.BOOT_FAILED:
            proven = any(worker.boot == "failed" for worker in workers)
        case Claim.WORK_FAILED:
            proven = any(worker.job == "failed" for worker in workers)
        case Claim.DONE:
            proven = bool(workers) and all(worker.job == "done" for worker in workers)
        case Claim.FINAL:
            proven = any(worker.job == "failed" and worker.final for worker in workers)
        case Claim.SILENT:
            spoken = [max(worker.boot_s, worker.job_s) for worker in workers]
            proven = health in _UNWELL or (bool(spoken) and 0 < max(spoken) < now_s - heartbeat_timeout_s)
        case Claim.NONE:
            return "there is no reason to delete it, and it lives"
    unread = next((f"; {worker.unread}" for worker in workers if worker.unread), "")
    return "" if proven else f"nothing but an object in the bucket says so ({claim}{unread})"

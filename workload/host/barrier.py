"""All workers of a slice meet before any goes on.

Worker 0 coordinates over objects below `barrier/<node>/<phase>/`; docs/architecture.md
("The barrier") says why nothing that an earlier boot left behind can open it. In a poll
worker 0 lists once and reads what changed, the others read one object.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection
from typing import Literal

from workload.host.bucket import Bucket
from workload.host.errors import BarrierTimeoutError
from workload.host.metadata import Node

__all__ = ["Phase", "wait"]

Phase = Literal["boot", "job"]

_POLL_S = 1.0


def wait(
    node: Node,
    phase: Phase,
    *,
    say: Callable[[str], None] = print,
    poll_s: float = _POLL_S,
) -> None:
    """Return once all workers of `node` are here; `BarrierTimeoutError` names who is not."""
    if node.workers == 1:
        say("barrier: a single worker waits for nobody")
        return
    began = time.monotonic()
    bucket = Bucket(node.bucket)
    prefix = f"barrier/{node.name}/{phase}/"
    if node.worker == 0:
        _lead(bucket, prefix, node, say, poll_s)
    else:
        _follow(bucket, prefix, node, say, poll_s)
    say(f"barrier: all {node.workers} workers are here, after {time.monotonic() - began:.1f} s")


def _lead(bucket: Bucket, prefix: str, node: Node, say: Callable[[str], None], poll_s: float) -> None:
    deadline = time.monotonic() + node.barrier_timeout_s
    round_id = str(uuid.uuid4())
    missing = list(range(1, node.workers))
    tokens: dict[int, str] = {}
    seen: dict[str, str] = {}
    published: list[int] | None = None
    while missing:
        if missing != published:
            bucket.write_json(prefix + "coordinator", {"round": round_id, "missing": missing, "go": []})
            say(f"barrier: waiting for {_workers(missing)}")
            published = missing
        if time.monotonic() > deadline:
            raise BarrierTimeoutError(_overdue(node, missing))
        time.sleep(poll_s)
        generations = bucket.generations(prefix + "worker-")
        for worker in range(1, node.workers):
            name = f"{prefix}worker-{worker}"
            if name not in generations or generations[name] == seen.get(name):
                continue
            seen[name] = generations[name]
            written = bucket.read_json(name) or {}
            # Only who knows this round is here in this round; a restart brings a new token.
            if written.get("ack") == round_id:
                tokens[worker] = str(written["token"])
            else:
                tokens.pop(worker, None)
        missing = [worker for worker in range(1, node.workers) if worker not in tokens]
    go = [tokens[worker] for worker in sorted(tokens)]
    bucket.write_json(prefix + "coordinator", {"round": round_id, "missing": [], "go": go})


def _follow(bucket: Bucket, prefix: str, node: Node, say: Callable[[str], None], poll_s: float) -> None:
    deadline = time.monotonic() + node.barrier_timeout_s
    token = str(uuid.uuid4())
    acknowledged: str | None = None
    said: list[int] | None = None
    bucket.write_json(f"{prefix}worker-{node.worker}", {"token": token, "ack": None})
    while True:
        coordinator = bucket.read_json(prefix + "coordinator") or {}
        if token in coordinator.get("go", ()):
            return
        if coordinator and coordinator["round"] != acknowledged:
            acknowledged = coordinator["round"]
            bucket.write_json(f"{prefix}worker-{node.worker}", {"token": token, "ack": acknowledged})
        missing = _missing_of(coordinator, node.worker)
        if missing != said:
            say(f"barrier: waiting for {_workers(missing)}")
            said = missing
        if time.monotonic() > deadline:
            raise BarrierTimeoutError(_overdue(node, missing))
        time.sleep(poll_s)


def _missing_of(coordinator: dict[str, object], worker: int) -> list[int]:
    """Return who keeps `worker` waiting, as far as the coordinator's object tells.

    A live worker 0 takes an acknowledging worker off its list; an object that still names
    this worker, or that opened for others, is an earlier boot's: worker 0 isn't here.
    """
    missing = coordinator.get("missing")
    if not isinstance(missing, list) or not missing or worker in missing:
        return [0]
    return missing


def _workers(missing: Collection[int]) -> str:
    numbers = ", ".join(str(worker) for worker in missing)
    return f"worker{'s' if len(missing) > 1 else ''} {numbers}"


def _overdue(node: Node, missing: Collection[int]) -> str:
    return (
        f"{_workers(missing)} of {node.workers} did not arrive within {node.barrier_timeout_s:g} s: look at "
        f"gs://{node.bucket}/boot/{node.name}/worker-<k>.json for what holds them up"
    )

"""All workers of a slice, or of a job's slices, meet before any goes on.

Worker 0 coordinates over objects below `barrier/<slice or job>/<phase>/`; docs/architecture.md
("The barrier") says why nothing that an earlier boot left behind can open it. In a poll
worker 0 lists once and reads what changed, the others read one object.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from workload.host.bucket import Bucket
from workload.host.errors import BarrierTimeoutError
from workload.host.metadata import Meeting, Node

__all__ = ["Phase", "wait"]

Phase = Literal["boot", "job"]

_POLL_S = 1.0
_ALIKE = "boot all hosts alike (sudo systemctl restart google-startup-scripts), then restart tpu-job there"
_WHERE_TO_LOOK: dict[Phase, str] = {
    "boot": "look at gs://{bucket}/boot/{{slice}}/worker-<k>.json for what holds them up",
    "job": "look at gs://{bucket}/boot/{{slice}}/worker-<k>.json, and there at: journalctl --unit=tpu-job",
}


def wait(
    node: Node,
    phase: Phase,
    *,
    word: str = "",
    program: str = "",
    say: Callable[[str], None] = print,
    poll_s: float = _POLL_S,
) -> str:
    """Return worker 0's `word` once all are here; `BarrierTimeoutError` names who is not.

    Who would run another `program` than worker 0 isn't taken for one of them, and is named.
    """
    meeting = node.meeting(phase)
    if meeting.workers == 1:
        say("barrier: a single worker waits for nobody")
        return word
    began = time.monotonic()
    bucket = Bucket(node.bucket)
    prefix = f"barrier/{meeting.name}/{phase}/"
    hint = _WHERE_TO_LOOK[phase].format(bucket=node.bucket)
    timing = _Timing(began + node.barrier_timeout_s, node.barrier_timeout_s, poll_s, hint)
    if meeting.worker == 0:
        _lead(bucket, prefix, meeting, word, program, say, timing)
    else:
        word = _follow(bucket, prefix, meeting, program, say, timing)
    say(f"barrier: all {meeting.workers} workers are here, after {time.monotonic() - began:.1f} s")
    return word


@dataclass(frozen=True)
class _Timing:
    deadline: float
    patience_s: float
    poll_s: float
    where_to_look: str

    def pause(self, meeting: Meeting, missing: Collection[int]) -> None:
        """Sleep until the next poll; `BarrierTimeoutError` past the deadline."""
        if time.monotonic() > self.deadline:
            name, _ = meeting.who(min(missing))
            of = f" of {meeting.workers}" if len(meeting.slices) == 1 else ""
            raise BarrierTimeoutError(
                f"{_workers(meeting, missing)}{of} did not arrive within {self.patience_s:g} s: "
                f"{self.where_to_look.format(slice=name)}"
            )
        time.sleep(self.poll_s)


def _lead(
    bucket: Bucket,
    prefix: str,
    meeting: Meeting,
    word: str,
    program: str,
    say: Callable[[str], None],
    timing: _Timing,
) -> None:
    round_id = str(uuid.uuid4())
    missing = list(range(1, meeting.workers))
    tokens: dict[int, str] = {}
    seen: dict[str, str] = {}
    unlike: set[int] = set()
    published: dict[str, list[int]] | None = None
    while missing:
        found = {"missing": missing, "unlike": sorted(unlike)}
        if found != published:
            bucket.write_json(prefix + "coordinator", {"round": round_id, **found, "go": []})
            say(f"barrier: waiting for {_workers(meeting, missing)}{_would_differ(meeting, unlike)}")
            published = found
        timing.pause(meeting, missing)
        generations = bucket.generations(prefix + "worker-")
        for worker in range(1, meeting.workers):
            name = f"{prefix}worker-{worker}"
            if name not in generations or generations[name] == seen.get(name):
                continue
            seen[name] = generations[name]
            written = bucket.read_json(name) or {}
            # Only who knows this round is here in this round; a restart brings a new token.
            here, alike = written.get("ack") == round_id, written.get("program", "") == program
            (unlike.add if here and not alike else unlike.discard)(worker)
            if here and alike:
                tokens[worker] = str(written["token"])
            else:
                tokens.pop(worker, None)
        missing = [worker for worker in range(1, meeting.workers) if worker not in tokens]
    go = [tokens[worker] for worker in sorted(tokens)]
    bucket.write_json(prefix + "coordinator", {"round": round_id, "missing": [], "go": go, "word": word})


def _follow(
    bucket: Bucket,
    prefix: str,
    meeting: Meeting,
    program: str,
    say: Callable[[str], None],
    timing: _Timing,
) -> str:
    me = {"token": str(uuid.uuid4()), "program": program}
    acknowledged: str | None = None
    said = ""
    bucket.write_json(f"{prefix}worker-{meeting.worker}", {**me, "ack": None})
    while True:
        coordinator = bucket.read_json(prefix + "coordinator") or {}
        if me["token"] in coordinator.get("go", ()):
            return str(coordinator.get("word", ""))
        if coordinator and coordinator["round"] != acknowledged:
            acknowledged = coordinator["round"]
            bucket.write_json(f"{prefix}worker-{meeting.worker}", {**me, "ack": acknowledged})
        missing = _missing_of(coordinator, meeting)
        unlike = {meeting.worker} & set(coordinator.get("unlike", ()))
        line = f"barrier: waiting for {_workers(meeting, missing)}{_would_differ(meeting, unlike)}"
        if line != said:
            say(line)
            said = line
        timing.pause(meeting, missing)


def _missing_of(coordinator: dict[str, object], meeting: Meeting) -> list[int]:
    """Return who keeps this worker waiting, as far as the coordinator's object tells.

    A live worker 0 takes an acknowledging worker off its list; an object that still names
    this worker, that opened for others, or that names workers that there no longer are is an
    earlier boot's: worker 0 isn't here.
    """
    missing = coordinator.get("missing")
    if not isinstance(missing, list) or not missing or meeting.worker in missing:
        return [0]
    return missing if max(missing) < meeting.workers else [0]


def _would_differ(meeting: Meeting, unlike: Collection[int]) -> str:
    return (
        f"; {_workers(meeting, sorted(unlike))} would run another job or bundle: {_ALIKE}" if unlike else ""
    )


def _workers(meeting: Meeting, missing: Collection[int]) -> str:
    of: dict[str, list[int]] = {}
    for worker in missing:
        name, number = meeting.who(worker)
        of.setdefault(name, []).append(number)
    said = {
        name: f"worker{'s' if len(some) > 1 else ''} {', '.join(map(str, some))}" for name, some in of.items()
    }
    if len(meeting.slices) == 1:
        return said[meeting.slices[0]]
    return "; ".join(f"{some} of {name}" for name, some in said.items())

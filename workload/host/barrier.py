"""All workers of a slice, or of a job's slices, meet before any continues.

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
        say("barrier: a single worker waits for no other")
        return word
    began = time.monotonic()
    hint = _WHERE_TO_LOOK[phase].format(bucket=node.bucket)
    prefix = f"barrier/{meeting.name}/{phase}/"
    # In a boot another may still wait for its number; a job that gives up is started again.
    timeout_s = node.barrier_timeout_s + (node.metadata_timeout_s if phase == "boot" else 0)
    barrier = _Barrier(Bucket(node.bucket), prefix, meeting, program, say, began, timeout_s, poll_s, hint)
    word = barrier.lead(word) if meeting.worker == 0 else barrier.follow()
    say(f"barrier: all {meeting.workers} workers are here, after {time.monotonic() - began:.1f} s")
    return word


@dataclass(frozen=True)
class _Barrier:
    """One worker at one meeting."""

    bucket: Bucket
    prefix: str
    meeting: Meeting
    program: str
    say: Callable[[str], None]
    began: float  # on the monotonic clock
    timeout_s: float
    poll_s: float
    where_to_look: str

    def lead(self, word: str) -> str:
        """Lets the others go, as worker 0, once all have answered to this round."""
        round_id = str(uuid.uuid4())
        others = range(1, self.meeting.workers)
        missing = list(others)
        tokens: dict[int, str] = {}
        seen: dict[str, str] = {}
        unlike: set[int] = set()
        published: dict[str, list[int]] | None = None
        while missing:
            found = {"missing": missing, "unlike": sorted(unlike)}
            if found != published:
                self._publish({"round": round_id, **found, "go": []})
                self.say(self._waiting_for(missing, unlike))
                published = found
            self._pause(missing)
            generations = self.bucket.generations(self.prefix + "worker-")
            for worker in others:
                name = self._name(worker)
                if name not in generations or generations[name] == seen.get(name):
                    continue
                seen[name] = generations[name]
                written = self.bucket.read_json(name) or {}
                # Only who knows this round is here in this round; a restart brings a new token.
                here, alike = written.get("ack") == round_id, written.get("program", "") == self.program
                (unlike.add if here and not alike else unlike.discard)(worker)
                if here and alike:
                    tokens[worker] = str(written["token"])
                else:
                    tokens.pop(worker, None)
            missing = [worker for worker in others if worker not in tokens]
        go = [tokens[worker] for worker in sorted(tokens)]
        self._publish({"round": round_id, "missing": [], "go": go, "word": word})
        return word

    def follow(self) -> str:
        """Waits until worker 0 lets this worker go; returns its word."""
        worker = self.meeting.worker
        me = {"token": str(uuid.uuid4()), "program": self.program}
        acknowledged: str | None = None
        output = ""
        self.bucket.write_json(self._name(worker), {**me, "ack": None})
        while True:
            coordinator = self.bucket.read_json(self.prefix + "coordinator") or {}
            if me["token"] in coordinator.get("go", ()):
                return str(coordinator.get("word", ""))
            if coordinator and coordinator["round"] != acknowledged:
                acknowledged = coordinator["round"]
                self.bucket.write_json(self._name(worker), {**me, "ack": acknowledged})
            missing = _missing_of(coordinator, self.meeting)
            line = self._waiting_for(missing, {worker} & set(coordinator.get("unlike", ())))
            if line != output:
                self.say(line)
                output = line
            self._pause(missing)

    def _name(self, worker: int) -> str:
        return f"{self.prefix}worker-{worker}"

    def _publish(self, state: dict[str, object]) -> None:
        self.bucket.write_json(self.prefix + "coordinator", state)

    def _waiting_for(self, missing: Collection[int], unlike: Collection[int]) -> str:
        line = f"barrier: waiting for {_workers(self.meeting, missing)}"
        if not unlike:
            return line
        return f"{line}; {_workers(self.meeting, sorted(unlike))} would run another job or bundle: {_ALIKE}"

    def _pause(self, missing: Collection[int]) -> None:
        """Sleep until the next poll; `BarrierTimeoutError` past the deadline."""
        if time.monotonic() > self.began + self.timeout_s:
            name, _ = self.meeting.who(min(missing))
            of = f" of {self.meeting.workers}" if len(self.meeting.slices) == 1 else ""
            raise BarrierTimeoutError(
                f"{_workers(self.meeting, missing)}{of} did not arrive within {self.timeout_s:g} s: "
                f"{self.where_to_look.format(slice=name)}"
            )
        time.sleep(self.poll_s)


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


def _workers(meeting: Meeting, missing: Collection[int]) -> str:
    of: dict[str, list[int]] = {}
    for worker in missing:
        name, number = meeting.who(worker)
        of.setdefault(name, []).append(number)
    output = {
        name: f"worker{'s' if len(some) > 1 else ''} {', '.join(map(str, some))}" for name, some in of.items()
    }
    if len(meeting.slices) == 1:
        return output[meeting.slices[0]]
    return "; ".join(f"{some} of {name}" for name, some in output.items())

"""Barrier of the workers of a slice, or of a job's slices.

Worker 0 coordinates over objects below `barrier/<slice or job>/<phase>/`; docs/internals/architecture.md
("The barrier") explains why no object of an earlier boot can open it. In each poll worker 0
lists once and reads the objects that changed; each other worker reads one object.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from workload.host.bucket import Bucket
from workload.host.errors import BarrierTimeoutError
from workload.host.metadata import HostDescription, Meeting

Phase = Literal["boot", "job"]

_LOG = logging.getLogger(__name__)
_POLL_S = 1.0
_ALIKE = "boot all hosts alike (sudo systemctl restart google-startup-scripts), then restart tpu-job there"
_HINTS: dict[Phase, str] = {
    "boot": "read gs://{bucket}/boot/{{slice}}/worker-<k>.json for their boot status",
    "job": "read gs://{bucket}/boot/{{slice}}/worker-<k>.json, and on that host: journalctl --unit=tpu-job",
}


def wait(
    node: HostDescription,
    phase: Phase,
    *,
    word: str = "",
    program: str = "",
    poll_s: float = _POLL_S,
) -> str:
    """Wait until all workers have arrived; return worker 0's `word`.

    Raises `BarrierTimeoutError` with the missing workers. A worker whose `program` differs from
    worker 0's isn't let through, and is named.
    """
    meeting = node.meeting(phase)
    if meeting.workers == 1:
        _LOG.info("barrier: single worker, nothing to wait for")
        return word
    began = time.monotonic()
    hint = _HINTS[phase].format(bucket=node.bucket)
    prefix = f"barrier/{meeting.name}/{phase}/"
    # During boot a worker may still wait for its number; a job that times out is restarted.
    timeout_s = node.barrier_timeout_s + (node.metadata_timeout_s if phase == "boot" else 0)
    barrier = _Barrier(Bucket(node.bucket), prefix, meeting, program, began, timeout_s, poll_s, hint)
    word = barrier.lead(word) if meeting.worker == 0 else barrier.follow()
    _LOG.info("barrier: all %d workers are here, after %.1f s", meeting.workers, time.monotonic() - began)
    return word


@dataclass(frozen=True)
class _Barrier:
    """Participation of a worker in a meeting."""

    bucket: Bucket
    prefix: str
    meeting: Meeting
    program: str
    began: float  # on the monotonic clock
    timeout_s: float
    poll_s: float
    hint: str

    def lead(self, word: str) -> str:
        """Release the other workers, as worker 0, once all have acknowledged this round."""
        round_id = str(uuid.uuid4())
        followers = range(1, self.meeting.workers)
        missing = list(followers)
        tokens: dict[int, str] = {}
        seen: dict[str, str] = {}
        unlike: set[int] = set()
        published: dict[str, list[int]] | None = None
        while missing:
            waiting = {"missing": missing, "unlike": sorted(unlike)}
            if waiting != published:
                self._publish({"round": round_id, **waiting, "go": []})
                _LOG.info(self._waiting_for(missing, unlike))
                published = waiting
            self._pause(missing)
            generations = self.bucket.generations(self.prefix + "worker-")
            for worker in followers:
                name = self._name(worker)
                if name not in generations or generations[name] == seen.get(name):
                    continue
                seen[name] = generations[name]
                written = self.bucket.read_json(name) or {}
                # An acknowledgement of another round is an earlier start's; a restart has a new token.
                arrived, alike = written.get("ack") == round_id, written.get("program", "") == self.program
                (unlike.add if arrived and not alike else unlike.discard)(worker)
                if arrived and alike:
                    tokens[worker] = str(written["token"])
                else:
                    tokens.pop(worker, None)
            missing = [worker for worker in followers if worker not in tokens]
        go = [tokens[worker] for worker in sorted(tokens)]
        self._publish({"round": round_id, "missing": [], "go": go, "word": word})
        return word

    def follow(self) -> str:
        """Wait until worker 0 releases this worker; return its word."""
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
                _LOG.info(line)
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
                f"{self.hint.format(slice=name)}"
            )
        time.sleep(self.poll_s)


def _missing_of(coordinator: dict[str, object], meeting: Meeting) -> list[int]:
    """Return the workers that this one waits for, as far as the coordinator's object lists them.

    A live worker 0 removes an acknowledging worker from its list. An object that still lists this
    worker, that released others, or that lists workers beyond the slice is an earlier boot's:
    worker 0 hasn't arrived.
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
        name: f"worker{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
        for name, numbers in of.items()
    }
    if len(meeting.slices) == 1:
        return output[meeting.slices[0]]
    return "; ".join(f"{numbers} of {name}" for name, numbers in output.items())

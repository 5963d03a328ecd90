"""`workload standby`: a slice that stands already trains what it is handed, one run after the other.

Every host polls `handoff/<slice>/run.json` of the checkpoint bucket, `{"id": …, "run": "train …"}`, which the
pipeline's workflow creates, and deletes to take the run back. The hosts meet at the barrier of the job, each
with the id and the object's generation, so that all start the same; each starts `workload train …`, without a
shell. How it ended is created once as `handoff/<slice>/ended/<id>.json`; an id that has ended isn't started
again.

A slice that was preempted and recreated finds the object as it was, and continues from the run's checkpoints.
Exit statuses mean what they mean to the unit of a job (unit.py): 0 is done, 2 failed for good, after anything
else it is started again, at most 20 times an hour.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Self

from workload.errors import ConfigError, Problem
from workload.host import unit
from workload.host.bucket import Bucket
from workload.host.errors import HostError, MetadataError, RunError
from workload.host.heartbeat import HANDOFF, Heartbeat
from workload.host.metadata import read

__all__ = ["HandOff", "Standby"]

_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_POLL_S = 5.0
_LOOK_S = 0.2  # at a child, and whether to stop it
_STOP_S = 300.0  # for the last checkpoint of a run that was taken back; systemd allows less
_NOTICE_S = 60.0
_BARRIER = (sys.executable, "-m", "workload.host", "barrier", "--phase", "job", "--program")
_WORKLOAD = (sys.executable, "-m", "workload")


@dataclass(frozen=True)
class HandOff:
    """What the slice is to train: words of a command, under an id, in one generation of the object."""

    generation: str
    id: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """What all hosts have to agree on before any of them starts."""
        return f"{self.id} {self.generation}"

    @classmethod
    def parse(cls, generation: str, content: bytes) -> Self:
        """Raises RunError for an object without an id; `words` are empty where `run` is no training."""
        try:
            value = json.loads(content)
        except ValueError:
            value = None
        id_ = value.get("id") if isinstance(value, dict) else None
        if not isinstance(id_, str) or not _ID.fullmatch(id_):
            raise RunError(f"generation {generation} is no hand-off: it has no id, such as r17-1")
        run = value.get("run")
        try:
            words = unit.words(run) if isinstance(run, str) else []
        except RunError:
            words = []
        return cls(generation, id_, tuple(words) if words[:1] == ["train"] else ())


class Standby:
    """One host of the slice."""

    def __init__(
        self,
        environment: Mapping[str, str],
        bucket: Bucket,
        node: str,
        worker: int,
        say: Callable[[str], None],
        poll_s: float = _POLL_S,
        again_s: float = unit.AGAIN_S,
        barrier: Sequence[str] = _BARRIER,
        workload: Sequence[str] = _WORKLOAD,
    ) -> None:
        """`barrier` and `workload` are the beginnings of the two commands that it starts."""
        self._environment, self._bucket, self._worker, self._say = environment, bucket, worker, say
        self._poll_s, self._again_s = poll_s, again_s
        self._barrier, self._workload = barrier, workload
        self._folder = f"handoff/{node}"
        self._stop = threading.Event()
        self._over = ""  # generation that isn't looked at again
        self._starts: deque[float] = deque()
        self._started = ""  # id that they are of
        self._idle: Heartbeat | None = None

    @classmethod
    def of_host(cls, environment: Mapping[str, str], say: Callable[[str], None]) -> Self:
        """The worker that a service's environment describes. Raises ConfigError where it describes none."""
        bucket, node = (environment.get(name, "") for name in ("CHECKPOINT_BUCKET", "TPU_NAME"))
        worker = environment.get("WORKER_ID", "")
        if not bucket or not node or not worker.isdecimal():
            given = f"CHECKPOINT_BUCKET={bucket} TPU_NAME={node} WORKER_ID={worker}"
            rule = "a host of a slice has all three"
            fix = "run: standby of an item of tpu:slices"
            raise ConfigError("workload standby", [Problem("environment", given, rule, fix)])
        return cls(environment, Bucket(bucket), node, int(worker), say)

    def stop(self) -> None:
        """What trains gets SIGTERM, and saves; then `serve` returns."""
        self._stop.set()

    def serve(self) -> int:
        """Trains what is handed over, until `stop`; 0."""
        last = ""
        while not self._stop.is_set():
            try:
                handoff = self._next()
                if handoff is None:
                    self._stands_by(last)
                    self._stop.wait(self._poll_s)
                else:
                    last = self._take(handoff)
            except HostError as error:  # storage is out of reach: what trains has ended, or never began
                self._say(f"standby: {error}")
                self._stop.wait(self._again_s)
        if self._idle:
            self._idle.end(None)
        return 0

    def _next(self) -> HandOff | None:
        """What there is to train; None for nothing, and for what has ended."""
        found = self._bucket.read_object(f"{self._folder}/run.json")
        if found is None or found[0] == self._over:
            return None
        try:
            handoff = HandOff.parse(*found)
        except RunError as error:
            self._say(f"standby: {self._folder}/run.json: {error}")
            self._over = found[0]
            return None
        if self._has_ended(handoff):
            self._over = handoff.generation
            return None
        return handoff

    def _take(self, handoff: HandOff) -> str:
        """Trains it as far as that goes here and now; what to say of it afterwards."""
        if not handoff.words:
            return self._end(handoff, "failed", "what was handed over is no `train …` that a host can start")
        if not self._may_start(handoff):
            return self._end(handoff, "failed", f"started {unit.MOST_STARTS} times in an hour; see tpu logs")
        self._say(f"standby: takes {handoff.id}: {' '.join(handoff.words)}")
        self._stands_by(f"{handoff.id} waits for the other hosts")
        status = self._child([*self._barrier, handoff.program], handoff, lambda: self._has_ended(handoff))
        if status == 0:
            self._stands_by(None)  # the trainer has the heartbeat from here on
            status = self._child([*self._workload, *handoff.words], handoff)
            if status == 0:
                return self._end(handoff, "done", "") if self._worker == 0 else self._await_end(handoff)
            if status == 2:
                return self._end(handoff, "failed", "exit status 2; see tpu logs")
        if status is None:
            return f"{handoff.id} was taken back"
        self._say(f"standby: {handoff.id} ended with {status}, and is started again")
        self._stop.wait(_NOTICE_S if _taken_away() else self._again_s)
        return ""

    def _child(
        self, command: Sequence[str], handoff: HandOff, over: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Exit status of a child, negative if a signal ended it; None if it was stopped, by us."""
        child = subprocess.Popen(command, env={**self._environment, HANDOFF: handoff.id})
        looked = time.monotonic()
        while True:
            try:
                return child.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                pass
            if not self._stop.is_set():
                if time.monotonic() < looked + self._poll_s:
                    continue
                looked = time.monotonic()
                try:
                    found = self._bucket.read_object(f"{self._folder}/run.json")
                    if found and found[0] == handoff.generation and not over():
                        continue
                except HostError as error:  # what trains needs no hand-off for that
                    self._say(f"standby: {error}")
                    continue
            self._say(f"standby: ends {handoff.id}")
            child.terminate()
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            return None

    def _may_start(self, handoff: HandOff) -> bool:
        """Whether it may be started once more; if so, this start counts."""
        if self._started != handoff.id:
            self._starts.clear()
            self._started = handoff.id
        now = time.monotonic()
        while self._starts and now - self._starts[0] > unit.WITHIN_S:
            self._starts.popleft()
        if len(self._starts) >= unit.MOST_STARTS:
            return False
        self._starts.append(now)
        return True

    def _has_ended(self, handoff: HandOff) -> bool:
        return self._bucket.read_object(self._ended(handoff)) is not None

    def _ended(self, handoff: HandOff) -> str:
        return f"{self._folder}/ended/{handoff.id}.json"

    def _end(self, handoff: HandOff, state: Literal["done", "failed"], why: str) -> str:
        """Says how it ended; who says so first is right."""
        value = {
            "id": handoff.id, "generation": handoff.generation, "state": state, "why": why,
            "worker": self._worker, "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        self._bucket.create_json(self._ended(handoff), value)
        self._over = handoff.generation
        self._say(f"standby: {handoff.id} {state}{f': {why}' if why else ''}")
        return f"{handoff.id} {state}"

    def _await_end(self, handoff: HandOff) -> str:
        """Done here: worker 0 says so, or starts again, and needs this host."""
        give_up = time.monotonic() + _NOTICE_S
        while time.monotonic() < give_up and not self._stop.is_set():
            if self._has_ended(handoff):
                break
            self._stop.wait(self._poll_s / 5)
        return f"{handoff.id} done"

    def _stands_by(self, why: str | None) -> None:
        """A heartbeat of our own, as long as nothing trains; None ends it."""
        if why is None:
            if self._idle:
                self._idle.end(None)
            self._idle = None
            return
        heartbeat = self._idle or Heartbeat.of_host(self._environment)
        heartbeat.report(why=f"stands by{f': {why}' if why else ''}")
        self._idle = self._idle or heartbeat.__enter__()


def _taken_away() -> bool:
    """Whether this machine goes away: then nothing is started on it any more."""
    try:
        return read("instance/preempted") == "TRUE"
    except MetadataError:
        return False

"""`workload standby`: a slice that stays up and trains one hand-off after the other.

Every host polls `handoff/<slice>/run.json` of the checkpoint bucket, `{"id": …, "run": "train …"}`, which the
pipeline's workflow creates, and deletes to revoke the run. The hosts meet at the barrier of the job, each
with the id and the object's generation, so that all start the same; each starts `workload train …`, without a
shell. The end is created once as `handoff/<slice>/ended/<id>.json`; an id that has ended isn't started again.

A slice that was preempted and recreated finds the object unchanged, and continues from the run's checkpoints.
Exit statuses mean the same as to the unit of a job (unit.py): 0 is done, 2 a permanent failure, any other is
restarted, at most 20 times an hour.
"""

from __future__ import annotations

import json
import logging
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

_LOG = logging.getLogger(__name__)
_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_POLL_S = 5.0
_CHECK_S = 0.2  # between checks of a child and of `stop`
_STOP_S = 300.0  # for the last checkpoint of a revoked run; systemd allows less
_NOTICE_S = 60.0
_BARRIER = (sys.executable, "-m", "workload.host", "barrier", "--phase", "job", "--program")
_WORKLOAD = (sys.executable, "-m", "workload")


@dataclass(frozen=True)
class HandOff:
    """Training handed to the slice: the words of a command, under an id, in a generation of the object."""

    generation: str
    id: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """Identity that all hosts compare before any of them starts."""
        return f"{self.id} {self.generation}"

    @classmethod
    def parse(cls, generation: str, content: bytes) -> Self:
        """Parse an object. Raises RunError without an id; `words` are empty if `run` isn't a training."""
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
    """Standby service of a host of the slice."""

    def __init__(
        self,
        environment: Mapping[str, str],
        bucket: Bucket,
        node: str,
        worker: int,
        poll_s: float = _POLL_S,
        again_s: float = unit.AGAIN_S,
        barrier: Sequence[str] = _BARRIER,
        workload: Sequence[str] = _WORKLOAD,
    ) -> None:
        """Configure the service; `barrier` and `workload` are the beginnings of its two commands."""
        self._environment, self._bucket, self._worker = environment, bucket, worker
        self._poll_s, self._again_s = poll_s, again_s
        self._barrier, self._workload = barrier, workload
        self._folder = f"handoff/{node}"
        self._stop = threading.Event()
        self._over = ""  # generation that has ended
        self._starts: deque[float] = deque()
        self._started = ""  # id of these starts
        self._idle: Heartbeat | None = None

    @classmethod
    def of_host(cls, environment: Mapping[str, str]) -> Self:
        """Return the service of the environment's worker. Raises ConfigError if it describes none."""
        bucket, node = (environment.get(name, "") for name in ("CHECKPOINT_BUCKET", "TPU_NAME"))
        worker = environment.get("WORKER_ID", "")
        if not bucket or not node or not worker.isdecimal():
            given = f"CHECKPOINT_BUCKET={bucket} TPU_NAME={node} WORKER_ID={worker}"
            rule = "a host of a slice has all three"
            fix = "run: standby of an item of tpu:slices"
            raise ConfigError("workload standby", [Problem("environment", given, rule, fix)])
        return cls(environment, Bucket(bucket), node, int(worker))

    def stop(self) -> None:
        """Send the trainer SIGTERM, upon which it saves; `serve` returns then."""
        self._stop.set()

    def serve(self) -> int:
        """Train each hand-off until `stop`; return 0."""
        last = ""
        while not self._stop.is_set():
            try:
                handoff = self._next()
                if handoff is None:
                    self._stands_by(last)
                    self._stop.wait(self._poll_s)
                else:
                    last = self._take(handoff)
            except HostError as error:  # storage is out of reach; no training runs
                _LOG.warning("standby: %s", error)
                self._stop.wait(self._again_s)
        if self._idle:
            self._idle.end(None)
        return 0

    def _next(self) -> HandOff | None:
        """Return the hand-off to train; None if there is none, or it has ended."""
        current = self._bucket.read_object(f"{self._folder}/run.json")
        if current is None or current[0] == self._over:
            return None
        try:
            handoff = HandOff.parse(*current)
        except RunError as error:
            _LOG.error("standby: %s/run.json: %s", self._folder, error)
            self._over = current[0]
            return None
        if self._has_ended(handoff):
            self._over = handoff.generation
            return None
        return handoff

    def _take(self, handoff: HandOff) -> str:
        """Train a hand-off until it ends or this start fails; return its state for the heartbeat."""
        if not handoff.words:
            return self._end(handoff, "failed", "the hand-off is not a `train …` command")
        if not self._may_start(handoff):
            return self._end(handoff, "failed", f"started {unit.MOST_STARTS} times in an hour; see tpu logs")
        _LOG.info("standby: takes %s: %s", handoff.id, " ".join(handoff.words))
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
            return f"{handoff.id} was revoked"
        _LOG.warning("standby: %s ended with %s, will restart", handoff.id, status)
        self._stop.wait(_NOTICE_S if _preempted() else self._again_s)
        return ""

    def _child(
        self, command: Sequence[str], handoff: HandOff, over: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Return a child's exit status, negative for a signal; None if this service stopped it."""
        child = subprocess.Popen(command, env={**self._environment, HANDOFF: handoff.id})
        checked = time.monotonic()
        while True:
            try:
                return child.wait(_CHECK_S)
            except subprocess.TimeoutExpired:
                pass
            if not self._stop.is_set():
                if time.monotonic() < checked + self._poll_s:
                    continue
                checked = time.monotonic()
                try:
                    current = self._bucket.read_object(f"{self._folder}/run.json")
                    if current and current[0] == handoff.generation and not over():
                        continue
                except HostError as error:  # training continues without storage's answer
                    _LOG.warning("standby: %s", error)
                    continue
            _LOG.info("standby: ends %s", handoff.id)
            child.terminate()
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            return None

    def _may_start(self, handoff: HandOff) -> bool:
        """Count a start; return False beyond the limit."""
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
        """Record the end of a hand-off; the first record counts."""
        value = {
            "id": handoff.id, "generation": handoff.generation, "state": state, "why": why,
            "worker": self._worker, "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        self._bucket.create_json(self._ended(handoff), value)
        self._over = handoff.generation
        _LOG.info("standby: %s %s%s", handoff.id, state, f": {why}" if why else "")
        return f"{handoff.id} {state}"

    def _await_end(self, handoff: HandOff) -> str:
        """Wait for worker 0, which records the end, or restarts and needs this host."""
        give_up = time.monotonic() + _NOTICE_S
        while time.monotonic() < give_up and not self._stop.is_set():
            if self._has_ended(handoff):
                break
            self._stop.wait(self._poll_s / 5)
        return f"{handoff.id} done"

    def _stands_by(self, why: str | None) -> None:
        """Write this service's own heartbeat while no training runs; None ends it."""
        if why is None:
            if self._idle:
                self._idle.end(None)
            self._idle = None
            return
        heartbeat = self._idle or Heartbeat.of_host(self._environment)
        heartbeat.report(why=f"stands by{f': {why}' if why else ''}")
        self._idle = self._idle or heartbeat.__enter__()


def _preempted() -> bool:
    """Return True if this machine is being preempted: it starts no training then."""
    try:
        return read("instance/preempted") == "TRUE"
    except MetadataError:
        return False

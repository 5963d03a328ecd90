"""A worker's heartbeat: the progress of its job; one listing of the bucket shows those of all workers.

`heartbeats/<node>/worker-<k>`; docs/internals/architecture.md, "Objects in the bucket", lists its metadata
and its interval. A short form is this machine's guest attribute `tpu/job`, which no other host can write.
Writing is best effort: no job waits for it or fails by it. Each heartbeat is also printed as an event with
more numbers, from which Cloud Logging derives metrics.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, Self

from workload import slurm
from workload.host import events
from workload.host.bucket import Bucket
from workload.host.errors import HostError
from workload.host.metadata import read, write_guest_attribute

_LOG = logging.getLogger(__name__)
_EVERY_S = 30.0  # at most
_AT_LEAST_EVERY_S = 60.0
_PATIENCE_S = 20.0  # with an unresponsive bucket or metadata server
_FULL_BYTES = 64 << 20  # free on the boot disk; with less, booting and logging in fail
_WHY_LENGTH = 200
_ATTRIBUTE = "tpu/job"
_QUOTA_S = 61.0  # after which Google takes another ten queries: metadata.py


class Heartbeat:
    """Publishes this worker's progress while its job runs; does nothing outside a slice's host.

    A context manager: leaving it by an exception reports `failed`; call `end("done")` before a normal exit.
    """

    def __init__(
        self,
        bucket: Bucket | None,
        node: str = "",
        worker: int = 0,
        every_s: float = _EVERY_S,
        at_least_every_s: float = _AT_LEAST_EVERY_S,
        command: str = "",
        probe: Callable[[], dict[str, float]] = dict,
        began_s: float | None = None,
    ) -> None:
        """Write nothing yet, and nothing at all without a bucket.

        Args:
            bucket: of the heartbeats.
            node: name of the slice's node.
            worker: number in its node.
            every_s: shortest time between two heartbeats.
            at_least_every_s: longest time between two.
            command: id of the command.
            probe: supplies further numbers for each event.
            began_s: start of the job by this host's clock; default: now.
        """
        self._began_s = time.time() if began_s is None else began_s
        self._probe, self._numbers = probe, dict[str, float]()
        self._since: dict[str, float] = {}  # when `step` and `checkpoint` last advanced
        self._bucket, self._node, self._worker, self._command = bucket, node, worker, command
        self._every_s, self._at_least_every_s = every_s, at_least_every_s
        self._state: str | None = "running"  # None: stopped
        self._facts: dict[str, str | int] = {}
        self._changed = threading.Condition()
        self._new = self._refused = False
        self._attributes: bool | None = None  # None: not tried yet
        self._attribute = ""  # written last
        self._thread = threading.Thread(target=self._loop, name="heartbeat", daemon=True)

    @classmethod
    def of_host(
        cls,
        environment: Mapping[str, str],
        probe: Callable[[], dict[str, float]] = dict,
        began_s: float | None = None,
    ) -> Self:
        """Return the heartbeat of the worker that the environment describes; else an inert one.

        A task of Slurm's has none: its host's heartbeat is slurmd's.
        """
        bucket, node = environment.get("CHECKPOINT_BUCKET"), environment.get("TPU_NAME")
        worker = environment.get("WORKER_ID", "")
        workers, slices = (environment.get(name, "1") for name in ("WORKER_COUNT", "SLICE_COUNT"))
        if (
            slurm.TASK in environment
            or not bucket
            or not node
            or not all(text.isdecimal() for text in (worker, workers, slices))
        ):
            return cls(None)
        # A job of several slices numbers their workers through; a node's own begin at 0.
        in_node = max(1, int(workers) // max(1, int(slices)))
        command = environment.get("TPU_COMMAND", "")
        bucket_client = Bucket(bucket, patience_s=_PATIENCE_S)
        own = int(worker) % in_node
        return cls(bucket_client, node, own, command=command, probe=probe, began_s=began_s)

    def report(self, **facts: str | int) -> None:
        """Update facts without waiting.

        `run`, `samples`, `of_samples`, `shards`, `size_bytes`, `loss`, `goodput`, `final`, `why`:
        see docs/internals/architecture.md.
        """
        with self._changed:
            self._new = self._new or not facts.items() <= self._facts.items()
            if "samples" in facts and facts["samples"] != self._facts.get("samples"):
                self._since["step"] = time.monotonic()
            self._facts |= facts
            self._changed.notify()

    def measure(self, **numbers: float) -> None:
        """Update numbers of the event alone: `loss`, `goodput`, `data_stall`, `step_s`."""
        with self._changed:
            self._numbers |= numbers

    def saved(self) -> None:
        """Record that a checkpoint was completed just now, or that the run begins."""
        with self._changed:
            self._since["checkpoint"] = time.monotonic()

    def end(self, state: Literal["done", "failed"] | None, why: BaseException | None = None) -> None:
        """Report the end of the job, with its error if it failed; only the first call counts.

        Returns once it is in the bucket, or after 40 s; a minute later if Google dropped the guest attribute
        of an end for good, without which no controller believes it. None stops without a report and
        without waiting: the job was preempted, or another attempt has taken over.
        """
        with self._changed:
            if self._state != "running":
                return
            self._state = state
            if state == "failed" and why:
                self._facts["why"] = " ".join(str(why).split())[:_WHY_LENGTH] or type(why).__name__
            self._changed.notify()
        if state and self._bucket:
            self._thread.join(2 * _PATIENCE_S + (_QUOTA_S if _for_good(state, self._facts) else 0.0))

    def __enter__(self) -> Self:
        if self._bucket:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self.end("failed" if kind and issubclass(kind, Exception) else None, error)

    def _loop(self) -> None:
        while True:
            with self._changed:
                state, facts, self._new = self._state, dict(self._facts), False
            if not state:
                return
            self.print_event(state)
            self._write_attribute(state, facts)
            self._write(state, facts)
            if _for_good(state, facts):
                self._attest(state, facts)
            if state != "running":
                return
            with self._changed:
                ended = self._changed.wait_for(lambda: self._state != "running", self._every_s)
                if not ended:
                    rest_s = self._at_least_every_s - self._every_s
                    self._changed.wait_for(lambda: self._new or self._state != "running", rest_s)

    def print_event(self, state: str) -> None:
        """Print the event: all facts, numbers, and the seconds since step and checkpoint advanced."""
        with self._changed:
            now = time.monotonic()
            ages = {f"{name}_age_s": round(now - at, 1) for name, at in self._since.items()}
            content = {"state": state, "worker": self._worker, **self._facts, **self._numbers, **ages}
        print(events.line("heartbeat", {**content, **self._probe()}), flush=True)

    def _write_attribute(self, state: str, facts: dict[str, str | int]) -> None:
        """Write the guest attribute; give up for good if the first attempt fails: no such server."""
        if self._attributes is False:
            return
        about = {"state": state, "command": self._command, "updated_s": round(time.time())}
        about |= {"why": facts.get("why", ""), "final": bool(facts.get("final"))}
        self._attribute = json.dumps(about)
        try:
            write_guest_attribute(_ATTRIBUTE, self._attribute)
        except (HostError, OSError, ValueError):
            self._attributes = self._attributes or False
        else:
            self._attributes = True

    def _attest(self, state: str, facts: dict[str, str | int]) -> None:
        """Write the guest attribute once more if it was dropped, as after many starts in a minute."""
        if not self._attributes:
            return
        with suppress(HostError, OSError, ValueError):
            if read(f"instance/guest-attributes/{_ATTRIBUTE}") != self._attribute:
                time.sleep(_QUOTA_S)
                self._write_attribute(state, facts)

    def _write(self, state: str, facts: dict[str, str | int]) -> None:
        assert self._bucket
        name = f"heartbeats/{self._node}/worker-{self._worker}"
        try:
            instance = read("instance/id")
            disk = "full" if shutil.disk_usage("/").free < _FULL_BYTES else ""
            began = f"{self._began_s:.3f}"
            known = {"command": self._command, "instance": instance, "disk": disk, "began_s": began}
            heartbeat = {"state": state, **facts, **{key: value for key, value in known.items() if value}}
            about = {"version": 1, "node": self._node, "worker": self._worker}
            updated = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            metadata = {key: str(value) for key, value in heartbeat.items()}
            self._bucket.write_json(name, {**about, **heartbeat, "updated": updated}, metadata)
        except (HostError, OSError, ValueError) as error:
            if not self._refused:
                _LOG.warning("%s not written, will retry: %s", name, str(error).splitlines()[0])
            self._refused = True
        else:
            self._refused = False


def _for_good(state: str, facts: Mapping[str, str | int]) -> bool:
    return state == "done" or (state == "failed" and bool(facts.get("final")))

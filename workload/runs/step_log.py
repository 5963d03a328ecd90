"""Step log of a run: losses, metrics, events and status, written by worker 0.

`metrics/` is exact: a segment holds the losses of (from, to] and is stored before checkpoint `to`
completes, so the segments up to any complete checkpoint have no gap. Their bytes depend only on the run.
If a repeated step has another loss, the run wasn't reproducible: the event `loss-differs` is logged, and
segments of earlier starts after the checkpoint are deleted; with `observe.strict` the run fails instead.
The stream of metrics (metrics.py), events and status contain wall times.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from workload.errors import HopelessError, OutageError, StoreError
from workload.host import events
from workload.runs import metrics
from workload.runs.event_files import EventFile
from workload.runs.goodput import GoodputRecorder
from workload.runs.store import READ_AT_ONCE, Store

_log = logging.getLogger(__name__)

_SEGMENT = re.compile(r"metrics/steps-(\d+)-(\d+)\.jsonl")
_STATUS = "status.json"
_VIEWS_EVERY_S = 60.0
_STATUS_EVERY_S = 2.0  # Cloud Storage limits an object to one write a second


def line(step: int, loss: float) -> str:
    """Format a line of a segment: `loss_hex` is exact, `loss` rounded."""
    return json.dumps({"step": step, "loss": round(loss, 6), "loss_hex": loss.hex()})


def read_losses(store: Store, strict: bool = True) -> dict[int, float]:
    """Read the loss of every step in the segments.

    Raises:
        HopelessError: `strict`, and two segments differ in a step.
    """
    losses: dict[int, float] = {}
    names = [name for name in store.list("metrics/") if _SEGMENT.fullmatch(name)]
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:  # a long run has a thousand, 30 ms each
        for segment in pool.map(store.read, names):
            for step, loss in _losses(segment).items():
                if losses.setdefault(step, loss) != loss and strict:
                    raise _unlike(store.url, step, losses[step].hex(), loss.hex())
    return losses


def _losses(segment: bytes) -> dict[int, float]:
    entries = map(json.loads, segment.decode().splitlines())
    return {entry["step"]: float.fromhex(entry["loss_hex"]) for entry in entries}


def _unlike(url: str, step: int, was: str, now: str) -> HopelessError:
    return HopelessError(
        f"{url}: step {step} was done twice with different losses, {was} and {now}\n"
        "    fix: check for changes of hosts or program, since the run isn't reproducible;"
        " observe.strict = false lets it continue"
    )


class StepLog:
    """Step log of a start.

    Attributes:
        best: returns the run's best step so far and its loss, for the status; None: there is none.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        node: str,
        steps: int,
        strict: bool = False,
        rented: Mapping[str, str] = {},
    ):
        """Open the log; nothing is written before `begin`, `event` or `status`.

        Args:
            store: of the run.
            run: its name.
            node: that trains it.
            steps: of the whole run.
            strict: see `flush`.
            rented: how each slice is paid for, for the status: `accelerator`, `zone`, `provisioning`.
        """
        self._rented = rented
        self._store, self._run, self._node, self._steps, self._strict = store, run, node, steps, strict
        self._earlier: dict[str, bytes] = {}  # segments of earlier starts after the checkpoint
        self._differing = 0
        self._pending: dict[int, float] = {}
        self._from = 0
        self._board: EventFile | None = None
        self._step = 0
        self._loss: float | None = None
        self._rows: list[str] = []  # of the stream, since the last `flush`
        self._numbers: dict[str, float] = {}
        self._viewed = -_VIEWS_EVERY_S
        self._soon = _Soon(store.write)
        self.best: Callable[[], tuple[int, float] | None] = lambda: None

    def begin(self, step: int, forget: bool = False) -> None:
        """Begin to log losses after `step`.

        Args:
            step: last restored step.
            forget: delete the later segments of earlier starts, since rounding or schedule have changed.
        """
        self._from = self._step = step
        for name in self._store.list("metrics/"):
            if (match := _SEGMENT.fullmatch(name)) and int(match[2]) > step:
                if forget:
                    self._store.delete(name)
                else:
                    self._earlier[name] = self._store.read(name)
        self._board = EventFile(self._store, step)
        self._rows = [metrics.begin_line(step, events.now())]

    def loss(self, step: int, loss: float, numbers: Mapping[str, float]) -> None:
        """Log the loss and other numbers of a step; stored by the next `flush`."""
        self._pending[step] = loss
        self._add(step, {"loss": loss, **numbers})
        self._numbers = dict(numbers)
        self.status("running", step, loss)

    def evaluated(self, step: int, loss: float) -> None:
        """Log the loss on held-out tokens after a step."""
        self._add(step, {"eval_loss": loss})
        self.event("eval", step=step, loss=round(loss, 6))

    def _add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add a row to the stream and its views."""
        self._rows.append(metrics.line(step, events.now(), numbers))
        if self._board:
            self._board.add(step, numbers)
            if time.monotonic() > self._viewed + _VIEWS_EVERY_S:
                self._viewed = time.monotonic()
                self._soon.put(metrics.LIVE, "".join(self._rows).encode())
                self._board.upload()

    def goodput(self, goodput: GoodputRecorder) -> None:
        """Store the accounts of this start within a few seconds."""
        self._soon.put(goodput.name(), _json(goodput.content()))

    def flush(self, to: int) -> None:
        """Store the losses up to step `to`; may be retried after an error.

        Raises:
            StoreError: the losses aren't stored; checkpoint `to` must not complete.
            HopelessError: strict, and an earlier start had other losses for these steps.
        """
        steps = range(self._from + 1, to + 1)
        if steps:
            text = "".join(line(step, self._pending[step]) + "\n" for step in steps)
            self._compare({step: self._pending[step] for step in steps})
            self._store.write(f"metrics/steps-{self._from}-{to}.jsonl", text.encode())
            self._earlier.pop(f"metrics/steps-{self._from}-{to}.jsonl", None)
            self._from = to
            for step in steps:
                del self._pending[step]
        rows = list(self._rows)  # later ones may come meanwhile
        if rows:
            name = f"{metrics.FOLDER}{_compact(events.now())}-{to}.jsonl"
            try:
                self._store.write(name, "".join(rows).encode())
            except OutageError:
                raise
            except StoreError as error:  # the run doesn't depend on its curves; the next `flush` has them
                _log.warning("not written: %s", str(error).splitlines()[0])
                return
            del self._rows[: len(rows)]
            self._soon.put(metrics.LIVE, "".join(self._rows).encode())

    def _compare(self, losses: dict[int, float]) -> None:
        """Compare with earlier starts' losses of the same steps; delete theirs if they differ."""
        known: dict[int, float] = {}
        for segment in self._earlier.values():
            known |= _losses(segment)
        differing = [step for step in losses if known.get(step, losses[step]) != losses[step]]
        if not differing:
            return
        first = differing[0]
        was, now = known[first].hex(), losses[first].hex()
        if self._strict:
            raise _unlike(self._store.url, first, was, now)
        for name in list(self._earlier):
            self._store.delete(name)
            del self._earlier[name]
        self._differing += len(differing)
        note = "not reproducible: did hosts, chips or the order of sums between slices change?"
        self.event("loss-differs", step=first, was=was, now=now, steps=len(differing), note=note)

    def event(self, kind: str, **details: Any) -> None:
        """Print and store an event with the time."""
        now = events.now()
        event = {"kind": kind, "time": now, "run": self._run, "node": self._node, **details}
        print(events.line(kind, details, now), flush=True)
        self._soon.put(f"events/{_compact(now)}-{kind}.json", _json(event), now=True)

    def status(self, state: str, step: int, loss: float | None) -> None:
        """Store the status of the run within a few seconds."""
        self._step, self._loss = step, loss
        self._soon.put(_STATUS, _json(self._status_of(state, step, loss)))

    def fail(self, reason: str, refused: bool = False) -> None:
        """Log the failure of the run after the last reported step.

        Args:
            reason: for messages.
            refused: the settings are unusable. Before `begin`, this leaves the status of the previous start.
        """
        self.event("failed", step=self._step, reason=reason)
        if refused and not self._board and self._has_status():
            self.close()
        else:
            self.end("failed", self._step, self._loss)

    def end(self, state: str, step: int, loss: float | None) -> None:
        """Store the final status; return once it is stored."""
        self.status(state, step, loss)
        self.close()

    def _has_status(self) -> bool:
        try:
            return bool(self._store.read(_STATUS))
        except StoreError:
            return False

    def close(self) -> None:
        """Write pending objects and close, without a final status."""
        if self._board:
            self._board.close()
        self._soon.put(metrics.LIVE, "".join(self._rows).encode())
        self._soon.close()

    def _status_of(self, state: str, step: int, loss: float | None) -> dict[str, Any]:
        best = self.best()
        return {
            "state": state,
            "step": step,
            "steps": self._steps,
            "loss": loss,
            "updated": events.now(),
            "run": self._run,
            "node": self._node,
            **self._rented,
            **self._numbers,
            **({"best": best[0], "best_loss": best[1]} if best else {}),
            **({"steps_that_differ": self._differing} if self._differing else {}),
        }


class _Soon:
    """Background writer of the newest content of each object.

    A refusal by storage loses the object, with a warning; in an outage the contents are retried.
    """

    def __init__(self, write: Callable[[str, bytes], None]):
        self._write = write
        self._contents: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._hurry = self._closed = False
        self._thread = threading.Thread(target=self._loop, name="status", daemon=True)
        self._thread.start()

    def put(self, name: str, content: bytes, now: bool = False) -> None:
        """Set the content of an object; `now`: write without the delay between versions of an object."""
        with self._changed:
            self._contents[name] = content
            self._hurry = self._hurry or now
            self._changed.notify()

    def close(self) -> None:
        """Write the pending contents, unless storage has an outage, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        closed = False
        while not closed:
            with self._changed:
                self._changed.wait_for(lambda: self._contents or self._closed)
                contents, self._contents = self._contents, {}
                self._hurry, closed = False, self._closed
            pending = self._write_all(contents)
            with self._changed:
                self._contents = pending | self._contents
                if closed and pending:
                    _log.warning("not written: %s", ", ".join(pending))
                hurry = (lambda: self._closed) if pending else (lambda: self._closed or self._hurry)
                self._changed.wait_for(hurry, timeout=_STATUS_EVERY_S)

    def _write_all(self, contents: dict[str, bytes]) -> dict[str, bytes]:
        """Write the contents in turn; return those from the first that an outage prevented."""
        names = list(contents)
        for number, name in enumerate(names):
            try:
                self._write(name, contents[name])
            except OutageError:
                return {name: contents[name] for name in names[number:]}
            except StoreError as error:
                _log.warning("not written: %s", str(error).splitlines()[0])
        return {}


def _json(content: Any) -> bytes:
    return (json.dumps(content) + "\n").encode()


def _compact(time: str) -> str:
    """Format a time for an object's name."""
    return time.replace(":", "").replace("-", "")

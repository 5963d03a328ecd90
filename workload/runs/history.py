"""A run as its folder shows it, for lists and pages: state, curves, interruptions, accounts of time."""

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from settings_schema import foreign
from settings_schema.foreign import ForeignError
from workload.errors import RunError
from workload.runs import goodput, lease
from workload.runs.errors import MissingObjectError
from workload.runs.goodput import GoodputSummary
from workload.runs.metrics import Metrics, Row, kept
from workload.runs.store import READ_AT_ONCE, Reader
from workload.settings import flat

_log = logging.getLogger(__name__)
T = TypeVar("T")
_Field = Callable[[Mapping[str, Any], str], T]

_END = re.compile(r"events/[^/]*Z-(?:preempted|interrupted|failed|done)\.json")
_DONE = "done"
_SILENT_S = 3 * lease.EXPIRES_S  # without a renewal of the lease; the host's clock may be wrong


@dataclass(frozen=True)
class Brief:
    """A run in a line of a list; None and empty: unknown.

    Attributes:
        run: its name.
        state: running, preempted, done or failed; `silent` if it runs by its status but no start holds it,
            `starting` if a start holds it and hasn't done a step.
        updated: when the status was written.
        accelerator, zone, provisioning: of each slice, such as v6e-16, us-east5-b, spot.
        chips: of all slices.
        paid_h: hours of its starts, without the time between them.
        best: step of its best checkpoint, where it keeps one.
        best_loss: that one's loss on held-out tokens.
    """

    run: str
    state: str
    step: int
    steps: int
    loss: float | None
    tokens_per_s: float | None
    goodput: float | None
    updated: str
    node: str
    accelerator: str
    zone: str
    provisioning: str
    chip: str
    chips: int
    slices: int
    paid_h: float
    left_s: float | None
    best: int | None
    best_loss: float | None

    @property
    def ended(self) -> bool:
        """True if no start holds it or will."""
        return self.state in ("done", "failed")


@dataclass(frozen=True)
class Mark:
    """An interruption after a step, or a later start from one."""

    step: int
    time_s: float
    kind: str
    why: str = ""


@dataclass(frozen=True)
class History:
    """A run's page in numbers.

    Attributes:
        brief: as in a list.
        rows: of the stream, without steps that were done again.
        marks: by time.
        time: accounts over all starts.
        config: settings by key path.
        tokens_a_step: None if unknown.
        url: of its folder.
        profiled: it has traces.
    """

    brief: Brief
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...]
    time: GoodputSummary
    config: Mapping[str, Any]
    tokens_a_step: int | None
    url: str
    profiled: bool

    def last(self, name: str) -> float | None:
        """Return the newest value of a curve."""
        return next((row.numbers[name] for row in reversed(self.rows) if name in row.numbers), None)


def brief(store: Reader, run: str, now_s: float) -> Brief | None:
    """Read a run for a list; None if the folder holds none."""
    record, status = _read(store, "config.json"), _read(store, "status.json")
    if not record and not status:
        return None
    return _brief(run, record, status, _age_s(store, now_s), goodput.summary(goodput.read(store)))


class RunReader:
    """Reader of one run, which reads what is new alone."""

    def __init__(self, store: Reader, run: str):
        self._store, self._run, self._metrics = store, run, Metrics(store)
        self._rows: list[Row] = []
        self._ends: dict[str, Mark] = {}

    def read(self, now_s: float) -> History:
        """Return the run as it is now.

        Raises:
            RunError: there is no such run.
        """
        record, status = _read(self._store, "config.json"), _read(self._store, "status.json")
        if not record and not status:
            raise RunError(f"{self._store.url}: no run is there")
        self._rows += self._metrics.new()
        names = [name for name in self._store.list("events/") if _END.fullmatch(name)]
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            fresh = [name for name in names if name not in self._ends]
            for name, event in zip(
                fresh, pool.map(lambda name: _read(self._store, name), fresh), strict=True
            ):
                self._ends[name] = _mark(event)
        time = goodput.summary(goodput.read(self._store))
        exact = _group(record, "exact")
        tokens = _count(_group(exact, "train"), "batch_size") * _count(
            _group(exact, "data"), "sequence_length"
        )
        return History(
            _brief(self._run, record, status, _age_s(self._store, now_s), time),
            tuple(kept(self._rows)),
            tuple(_marks(self._rows, self._ends.values())),
            time,
            flat({**exact, **_group(record, "rounding")}),
            tokens or None,
            self._store.url,
            bool(self._store.list("profile/")),
        )


def _brief(
    run: str, record: dict[str, Any], status: dict[str, Any], age_s: float | None, time: GoodputSummary
) -> Brief:
    rounding = _group(record, "rounding")
    chips = math.prod(_count(_group(rounding, "mesh"), name) for name in _group(rounding, "mesh"))
    rate, step = _number(status, "tokens_per_s_per_chip"), _count(status, "step")
    held, state = age_s is not None and age_s < _SILENT_S, _text(status, "state")
    if held and state not in ("running", "done"):
        state = "starting"
    elif state == "running" and not held:
        state = "silent"
    train = _group(_group(record, "exact"), "train")
    return Brief(
        run, state or "silent", step, _count(status, "steps") or _count(train, "steps"),
        _number(status, "loss"), rate * chips if rate is not None and chips else None,
        time.goodput if time.starts else None, _text(status, "updated"), _text(status, "node"),
        _text(status, "accelerator"), _text(status, "zone"), _text(status, "provisioning"),
        _text(rounding, "chip"), chips, max(1, _count(rounding, "slices")),
        (time.wall_s - time.accounts_s["down"]) / 3600, _number(status, "left_s"),
        _count(status, "best") or None, _number(status, "best_loss"),
    )  # fmt: skip


def _age_s(store: Reader, now_s: float) -> float | None:
    """Return the age of the lease's last renewal; None: no start holds the run."""
    written = _number(_read(store, lease.NAME), "written")
    return None if written is None else now_s - written


def _mark(event: Mapping[str, Any]) -> Mark:
    lost = _count(event, "lost_steps")
    why = _text(event, "reason").partition("\n")[0] or (f"steps to do again: {lost}" if lost else "")
    return Mark(_count(event, "step"), _unix_s(_text(event, "time")), _text(event, "kind") or "unknown", why)


def _marks(rows: list[Row], ends: Iterable[Mark]) -> Iterator[Mark]:
    """Yield the ends of starts and the starts after them, by time; an end without a notice has no event."""
    begins = [row for row in rows if row.begins]
    waiting = sorted(ends, key=lambda mark: mark.time_s)
    for number, begin in enumerate(begins):
        noticed = [mark for mark in waiting if mark.time_s <= begin.time_s]
        waiting = waiting[len(noticed) :]
        yield from (mark for mark in noticed if mark.kind != _DONE)
        if number:
            why = "" if noticed else "the start before ended without notice"
            yield Mark(begin.step, begin.time_s, "restart", why)
    yield from (mark for mark in waiting if mark.kind != _DONE)


def _read(store: Reader, name: str) -> dict[str, Any]:
    """Return an object's JSON; empty if it is missing or damaged."""
    try:
        return foreign.parse(store.read(name))
    except MissingObjectError:
        return {}
    except ForeignError as error:
        _log.warning("left out: %s/%s: %s", store.url, name, error)
        return {}


def _lenient(read: _Field[T], otherwise: T) -> _Field[T]:
    """Return a reader of fields that has a value for those that aren't of their schema."""

    def known(data: Mapping[str, Any], key: str) -> T:
        with suppress(ForeignError):
            return read(data, key)
        return otherwise

    return known


_group, _count = _lenient(foreign.group, dict[str, Any]()), _lenient(foreign.count, 0)
_number, _text = _lenient(foreign.number, None), _lenient(foreign.text, "")


def _unix_s(text: str) -> float:
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).timestamp()
    return 0.0

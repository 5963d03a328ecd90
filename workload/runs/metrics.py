"""Metrics of a run: one stream of rows, of which TensorBoard's files, Vertex's curves and pages are views.

`progress/<time>-<step>.jsonl` is stored before checkpoint `step` completes and holds the rows since the
object before it, so that a run has the rows of all steps up to any complete checkpoint. `progress/live.jsonl`
holds the rows since then and is replaced every minute. A line is a row, `{"step", "time", NAME: number, …}`,
or the beginning of a start, `{"begin": STEP, "time"}`, which does the later steps again.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from settings_schema import foreign
from settings_schema.foreign import ForeignError
from workload.runs.errors import MissingObjectError
from workload.runs.store import READ_AT_ONCE, Reader

_log = logging.getLogger(__name__)

FOLDER = "progress/"
LIVE = f"{FOLDER}live.jsonl"
_MOST_BYTES = 64 << 20  # of an object; 250 a row


@dataclass(frozen=True)
class Point:
    """Value of a curve; `time_s` since 1970."""

    step: int
    value: float
    time_s: float


@dataclass(frozen=True)
class Row:
    """Numbers by name after a step, or the beginning of a start that resumes after `step`."""

    step: int
    time_s: float
    numbers: Mapping[str, float]
    begins: bool = False


def line(step: int, time: str, numbers: Mapping[str, float]) -> str:
    """Format a row."""
    return json.dumps({"step": step, "time": time, **numbers}) + "\n"


def begin_line(step: int, time: str) -> str:
    """Format the beginning of a start after `step`."""
    return json.dumps({"begin": step, "time": time}) + "\n"


class Metrics:
    """Reader of a run's stream."""

    def __init__(self, store: Reader):
        self._store = store
        self._read: set[str] = set()
        self._recent: set[bytes] = set()  # lines of the live object: the next stored one repeats them

    def exist(self) -> bool:
        """Return True if the run has a row."""
        return any([*self._rows(name, self._lines(name))] for name in self._store.list(FOLDER))

    def new(self) -> Iterator[Row]:
        """Yield the rows since the last call, each once, in the order of starts and of time."""
        names = [name for name in self._store.list(FOLDER) if name not in self._read]  # `live` is the last
        lines: set[bytes] = set()
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            for name, content in zip(names, pool.map(self._lines, names), strict=True):
                fresh = [line for line in content if line not in lines and line not in self._recent]
                yield from self._rows(name, fresh)
                lines.update(content)
                if name != LIVE:
                    self._read.add(name)
        if all(name == LIVE for name in names):  # its rows may have moved to an object that isn't listed yet
            lines |= self._recent
        self._recent = lines

    def _lines(self, name: str) -> list[bytes]:
        with suppress(MissingObjectError):  # it was replaced since it was listed
            return self._store.read(name, 0, _MOST_BYTES).splitlines()
        return []

    def _rows(self, name: str, lines: Iterable[bytes]) -> Iterator[Row]:
        for raw in lines:
            try:
                yield _parse(raw)
            except ForeignError as error:
                _log.warning("left out: a line of %s/%s: %s", self._store.url, name, error)


def kept(rows: Iterable[Row]) -> list[Row]:
    """Return the rows without those of steps that a later start did again."""
    result: list[Row] = []
    for row in rows:
        if row.begins:
            result = [earlier for earlier in result if earlier.step <= row.step]
        else:
            result.append(row)
    return result


def _parse(raw: bytes) -> Row:
    """Return the row of a line. Raises ForeignError."""
    parsed = foreign.parse(raw)
    begins = "begin" in parsed
    step = foreign.count(parsed, "begin" if begins else "step")
    try:
        time_s = datetime.fromisoformat(foreign.text(parsed, "time")).timestamp()
    except (ValueError, OverflowError):
        raise ForeignError("has no time") from None
    names = () if begins else parsed.keys() - {"step", "time"}
    read = {name: foreign.number(parsed, name) for name in names}
    return Row(step, time_s, {name: value for name, value in read.items() if value is not None}, begins)

"""TensorBoard's event file of a start: the curves of the whole run, from its stream of metrics.

Each start writes the steps before it once more, so that no kill leaves a gap, and removes the files of
earlier starts once its own is stored.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter  # type: ignore[import-untyped]
from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

from workload.errors import StoreError
from workload.runs.metrics import Metrics, kept
from workload.runs.store import Store

_log = logging.getLogger(__name__)

_FOLDER = "tensorboard/"


class EventFile:
    """Event file of this start; all work is done by a thread of its own, in the order of the calls.

    A failure is logged: it costs the view, never the run.
    """

    def __init__(self, store: Store, step: int):
        """Begin the file of a start that resumes after `step`."""
        self._store = store
        self._scratch = tempfile.TemporaryDirectory(prefix="tensorboard-")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tensorboard")
        self._earlier: list[str] = []
        self._writer: Any = None  # after a failure, too
        self._thread.submit(self._reported, self._open, step)

    def _reported(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do some work; any error but storage's ends the file."""
        if self._writer is None and work != self._open:
            return
        try:
            work(*arguments)
        except StoreError as error:
            _log.warning("not written: %s", str(error).splitlines()[0])
        except Exception as error:
            self._writer = None
            _log.warning("TensorBoard's file ends here: %s: %s", type(error).__name__, error)

    def _open(self, step: int) -> None:
        """Create the file, with the metrics up to `step`."""
        try:
            self._earlier = self._store.list(_FOLDER)
            known = kept(Metrics(self._store).new()) if step else []
        except StoreError as error:
            _log.warning("TensorBoard keeps the files of earlier starts: %s", str(error).splitlines()[0])
            known = []
        complete = bool(known) or not step
        if not complete:
            self._earlier = []
        writer = EventsWriter(str(Path(self._scratch.name, "events")))
        # TensorBoard drops points of earlier files from the step of START on.
        start = SessionLog(status=SessionLog.START)
        writer.write_event(Event(step=1 if complete else step + 1, wall_time=time.time(), session_log=start))
        for row in known:
            if row.step <= step:
                writer.write_event(_event(row.step, row.time_s, row.numbers))
        self._writer = writer

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Add the numbers of a step."""
        self._thread.submit(self._reported, self._add, step, dict(numbers), time.time())

    def _add(self, step: int, numbers: Mapping[str, float], time_s: float) -> None:
        self._writer.write_event(_event(step, time_s, numbers))

    def upload(self) -> None:
        """Store the whole file, which grows with the run, and remove those of earlier starts."""
        self._thread.submit(self._reported, self._upload)

    def _upload(self) -> None:
        self._writer.flush()
        names = [path.name for path in Path(self._scratch.name).iterdir()]
        for name in names:
            self._store.write(f"{_FOLDER}{name}", Path(self._scratch.name, name).read_bytes())
        for name in self._earlier:
            if name.removeprefix(_FOLDER) not in names:
                self._store.delete(name)
        self._earlier = []

    def close(self) -> None:
        """Store the file for the last time, and end the thread."""
        self.upload()
        self._thread.submit(self._reported, lambda: self._writer.close())
        self._thread.shutdown()
        self._scratch.cleanup()


def _event(step: int, time_s: float, numbers: Mapping[str, float]) -> Event:
    values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
    return Event(step=step, wall_time=time_s, summary=Summary(value=values))

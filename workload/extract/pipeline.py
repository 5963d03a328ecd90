"""Concurrent stages, a thread each, with short queues between them."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

Work = Callable[[Iterator[Any]], Iterable[Any]]
"""Function from an iterator of inputs to an iterable of outputs."""

_DEPTH = 2  # items waiting before a stage; more only cost memory
_END = object()


@dataclass
class Stage:
    """A stage: its name, its function, and its busy time."""

    name: str
    work: Work
    busy_s: float = 0.0
    _waited_s: float = field(default=0.0, repr=False)


class _StoppedError(Exception):
    """Another stage has failed."""


def run(source: Iterable[Any], stages: list[Stage]) -> None:
    """Send all of `source` through all stages; add to their `busy_s`.

    Raises:
        Exception: the first one raised by a stage; the other stages have stopped by then.
    """
    stop = threading.Event()
    failures: list[BaseException] = []
    queues: list[queue.Queue[Any]] = [queue.Queue(_DEPTH) for _ in stages]

    def put(into: queue.Queue[Any], item: Any) -> None:
        while not stop.is_set():
            try:
                return into.put(item, timeout=0.1)
            except queue.Full:
                pass
        raise _StoppedError

    def items(stage: Stage, number: int) -> Iterator[Any]:
        while True:
            begun = time.monotonic()
            while True:
                if stop.is_set():
                    raise _StoppedError
                try:
                    item = queues[number].get(timeout=0.1)
                    break
                except queue.Empty:
                    pass
            stage._waited_s += time.monotonic() - begun
            if item is _END:
                return
            yield item

    def work(stage: Stage, number: int) -> None:
        begun = time.monotonic()
        try:
            for done in stage.work(items(stage, number)):
                if number + 1 < len(stages):
                    waiting = time.monotonic()
                    put(queues[number + 1], done)
                    stage._waited_s += time.monotonic() - waiting
            if number + 1 < len(stages):
                put(queues[number + 1], _END)
        except _StoppedError:
            pass
        except BaseException as error:
            failures.append(error)
            stop.set()
        stage.busy_s += time.monotonic() - begun - stage._waited_s
        stage._waited_s = 0.0

    threads = [
        threading.Thread(target=work, args=(stage, number), name=stage.name, daemon=True)
        for number, stage in enumerate(stages)
    ]
    for thread in threads:
        thread.start()
    try:
        for item in source:
            put(queues[0], item)
        put(queues[0], _END)
    except _StoppedError:
        pass
    except BaseException:
        stop.set()
        raise
    finally:
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]

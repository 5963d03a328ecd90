"""Concurrent stages of one or several threads each, with short queues between them."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Work = Callable[[Iterator[Any]], Iterable[Any]]
"""Function from an iterator of inputs to an iterable of outputs."""

_DEPTH = 2  # items waiting before a stage; more only cost memory
_END = object()


@dataclass
class Stage:
    """A stage: its name, its function, the threads that share its inputs, and their mean busy time."""

    name: str
    work: Work
    threads: int = 1
    busy_s: float = 0.0


class _StoppedError(Exception):
    """Another stage has failed."""


def run(source: Iterable[Any], stages: list[Stage]) -> None:
    """Send all of `source` through all stages; add to their `busy_s`. Several threads keep no order.

    Raises:
        Exception: the first one raised by a stage; the other stages have stopped by then.
    """
    stop = threading.Event()
    failures: list[BaseException] = []
    queues: list[queue.Queue[Any]] = [queue.Queue(_DEPTH) for _ in stages]
    running, ended = [stage.threads for stage in stages], threading.Lock()

    def put(into: queue.Queue[Any], item: Any) -> None:
        while not stop.is_set():
            try:
                return into.put(item, timeout=0.1)
            except queue.Full:
                pass
        raise _StoppedError

    def work(stage: Stage, number: int) -> None:
        begun, waited_s = time.monotonic(), 0.0

        def items() -> Iterator[Any]:
            nonlocal waited_s
            while True:
                waiting = time.monotonic()
                while True:
                    if stop.is_set():
                        raise _StoppedError
                    try:
                        item = queues[number].get(timeout=0.1)
                        break
                    except queue.Empty:
                        pass
                waited_s += time.monotonic() - waiting
                if item is _END:
                    return
                yield item

        try:
            for done in stage.work(items()):
                if number + 1 < len(stages):
                    waiting = time.monotonic()
                    put(queues[number + 1], done)
                    waited_s += time.monotonic() - waiting
        except _StoppedError:
            pass
        except BaseException as error:
            failures.append(error)
            stop.set()
        with ended:
            stage.busy_s += (time.monotonic() - begun - waited_s) / stage.threads
            running[number] -= 1
            last = not running[number]
        with suppress(_StoppedError):
            if not last:
                put(queues[number], _END)  # for the next of this stage's threads
            elif number + 1 < len(stages):
                put(queues[number + 1], _END)

    threads = [
        threading.Thread(target=work, args=(stage, number), name=stage.name, daemon=True)
        for number, stage in enumerate(stages)
        for _ in range(stage.threads)
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

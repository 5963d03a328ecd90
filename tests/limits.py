"""Waits in tests.

A wait ends when its condition holds, so its limit costs nothing unless the code hangs. It is long enough for
a machine that is busy with other work: tests must not measure load.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANG_S = 600.0


def until(condition: Callable[[], T], shown: Callable[[], object] = lambda: "it doesn't come about") -> T:
    """Wait until a condition is true; return its value, or fail with what is `shown` then."""
    end_s = time.monotonic() + HANG_S
    while not (value := condition()):
        assert time.monotonic() < end_s, shown()
        time.sleep(0.02)
    return value

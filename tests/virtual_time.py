"""Replacements of functions of `time` for one thread: threads of earlier tests may still run beside it."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest


def replace_time(monkeypatch: pytest.MonkeyPatch, name: str, replacement: Callable[..., Any]) -> None:
    """Replace `time.NAME` for the calling thread, until the test ends."""
    real, caller = getattr(time, name), threading.current_thread()

    def chosen(*arguments: Any) -> Any:
        return (replacement if threading.current_thread() is caller else real)(*arguments)

    monkeypatch.setattr(time, name, chosen)

"""A pytest plugin that writes which lines of the emulated cloud and of the stacks each test runs.

`-p tests.proofs.recorder` with RECORD_TO=FILE. What runs before a test's own body (its fixtures, which a
module may share) counts for every test of the module; what runs at import counts for none.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

SHARED = ""  # stands for every test of the module
_ROOT = f"{Path(__file__).parents[2]}{os.sep}"
_FOLDERS = tuple(f"{_ROOT}{name}{os.sep}" for name in ("rehearsal/cloud", "rehearsal/hosts", "infra"))
_lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
_took_s: dict[str, float] = {}
_passed: set[str] = set()
_current: set[tuple[str, int]] = set()


def _trace(frame: FrameType, event: str, arg: Any) -> Any:
    return _line if frame.f_code.co_filename.startswith(_FOLDERS) else None


def _line(frame: FrameType, event: str, arg: Any) -> Any:
    if event == "line" and frame.f_code.co_name != "<module>":
        _current.add((frame.f_code.co_filename, frame.f_lineno))
    return _line


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    _switch(SHARED)
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    _switch(item.nodeid)
    try:
        yield
    finally:
        _switch(SHARED)


def _switch(key: str) -> None:
    global _current
    _current = _lines[key]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _took_s[report.nodeid] = round(_took_s.get(report.nodeid, 0.0) + report.duration, 2)
    if report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_configure() -> None:
    threading.settrace(_trace)
    sys.settrace(_trace)


def pytest_unconfigure() -> None:
    sys.settrace(None)
    tests: dict[str, dict[str, list[int]]] = {}
    for key, lines in _lines.items():
        found: dict[str, list[int]] = defaultdict(list)
        for path, line in sorted(lines):
            found[path.removeprefix(_ROOT)].append(line)
        tests[key] = found
    record = {"lines": tests, "took_s": {name: _took_s[name] for name in sorted(_passed)}}
    Path(os.environ["RECORD_TO"]).write_text(json.dumps(record))

"""The tests on a machine that isn't idle: those of `make test`, again and again, beside busy loops."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# As in the Makefile's `test`.
PYTEST = [sys.executable, "-m", "pytest", "-n", "5", "--dist", "loadfile", "--no-loadscope-reorder", "-rfE"]
_NOT_PASSED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that want a core each, until the end."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
        assert all(item.poll() is None for item in running), "the machine wasn't busy all the time"
    finally:
        for entry in running:
            entry.kill()
            entry.wait()


def measure(times: int, loops: int, paths: Sequence[str], report: Callable[[str], None]) -> dict[str, Any]:
    """Count the runs in which all tests passed, and the failures of each test."""
    passed, not_passed = 0, Counter[str]()
    with busy(loops):
        for number in range(1, times + 1):
            done = subprocess.run([*PYTEST, *paths], capture_output=True, text=True, check=False)
            names = _NOT_PASSED.findall(done.stdout)
            passed += done.returncode == 0
            not_passed.update(names or ([] if done.returncode == 0 else [f"pytest: {done.returncode}"]))
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            report(f"{number}/{times}: {' '.join(last)} {' '.join(names)}")
    return {"times": times, "loops": loops, "passed": passed, "not_passed": dict(not_passed)}

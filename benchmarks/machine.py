"""Machine and package versions of a measurement."""

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any


def described(packages: Iterable[str]) -> dict[str, Any]:
    """Processor, cores, memory, Python and the versions of some packages; and the day."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory_kib = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "day": datetime.now(UTC).date().isoformat(),
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def session(leader: int) -> Iterator[tuple[int, list[str]]]:
    """Each process of a session, whoever its parent is: its id, and its `stat` from the state on (proc(5)).

    Spark's tasks have groups of their own, and some of its processes lose their parent.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    yield int(entry.name), fields


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, middle and most of some measurements, and how many they are."""
    return {"min": min(values), "median": median(values), "max": max(values), "runs": len(values)}


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()

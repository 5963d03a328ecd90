"""Runs of `workload preprocess` that lose their machine or a task at random instants, and start again."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import session
from tests.spark import environment
from tests.workload.preprocess import corpus

MASTER = "local[2,8]"  # a task is tried eight times
LONGEST_S = 240
EARLIEST = 0.3  # of a run's time: before it, nothing but Java's start is to be killed
LATEST = 0.9


@dataclass
class Counts:
    """Kills so far.

    Attributes:
        machines: driver, Java and tasks at once.
        tasks: one Python process of Spark's.
        starts: it took, of all runs.
    """

    machines: int = 0
    tasks: int = 0
    starts: int = 0


class Preprocessing:
    """Runs over one corpus, each in a folder of its own, against an undisturbed one."""

    def __init__(self, folder: Path):
        self._folder = folder
        corpus.mixed(folder / "raw")
        self._tokenizer = corpus.tokenizer(folder / "bpe")
        self.counts = Counts()
        self._took_s = float("inf")
        self._begun = 0.0
        self._finish(self._start("whole"))
        self.whole = self._content("whole")
        assert len(self.whole) > 12, self.whole

    def disturbed(self, number: int, draw: random.Random) -> int:
        """A run with up to three kills; how many there were.

        Raises:
            AssertionError: it came to something else than the undisturbed one.
        """
        name, kills = f"run-{number}", 0
        for _ in range(draw.randint(1, 3)):
            started = self._start(name)
            after_s = draw.uniform(EARLIEST, LATEST) * self._took_s
            try:
                started.wait(after_s)
                self._finish(started)
                break  # it was over before
            except subprocess.TimeoutExpired:
                pass
            tasks = list(_tasks(started.pid))
            if tasks and draw.random() < 0.5:
                os.kill(draw.choice(tasks), signal.SIGKILL)
                self.counts.tasks += 1
                kills += 1
                self._finish(started)
                break
            for process, _ in session(started.pid):
                _kill(process)
            started.wait()
            self.counts.machines += 1
            kills += 1
        self._finish(self._start(name))
        content = self._content(name)
        assert content == self.whole, f"{name}: {sorted(content.items() ^ self.whole.items())}"
        shutil.rmtree(self._folder / name)
        return kills

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        self.counts.starts += 1
        self._begun = time.monotonic()
        settings = {
            "input.sources": self._folder / "raw",
            "output.url": self._folder / name,
            "output.shards": 6,
            "tokenizer.name": self._tokenizer,
            "runtime.piece_mib": 1,
        }
        given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        line = [environment.python(), "-m", "workload", "preprocess", "text.toml", "--master", MASTER, *given]
        log = (self._folder / f"{name}.log").open("ab")
        with log:
            return subprocess.Popen(
                line, cwd=environment.ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def _finish(self, started: subprocess.Popen[bytes]) -> None:
        assert started.wait(LONGEST_S) == 0, "\n".join(
            path.read_text()[-2000:] for path in self._folder.glob("*.log")
        )
        took_s = time.monotonic() - self._begun
        # The machine may be busy with else: what the last whole run took is the measure, not the first.
        self._took_s = min(took_s, 1.2 * self._took_s)

    def _content(self, name: str) -> dict[str, str]:
        """The SHA-256 of all that is there; what a killed write left beside its object would show too."""
        (run,) = (self._folder / name).iterdir()
        files = [path for path in run.rglob("*") if path.is_file()]
        return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _tasks(leader: int) -> Iterator[int]:
    """Python processes of a session that compute: children of Spark's daemon, and the daemon."""
    for process, _ in session(leader):
        try:
            line = Path(f"/proc/{process}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"pyspark.daemon" in line:
            yield process


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return

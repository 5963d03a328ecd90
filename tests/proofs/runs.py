"""Runs of four workers on the rehearsal's storage, killed at random instants, against one left alone."""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.proofs.killing import BUCKET
from tests.rehearsal.cloud.storage.storage_front import PROJECT, Front
from tests.workload.slice import SETTINGS, Workers
from workload.data.prepare import prepare

WORKERS, STEPS, EVERY = 4, 40, 5
LONGEST_S = 8.0  # from a start to an instant: past the end of an undisturbed run on two idle cores


@dataclass(frozen=True)
class Killed:
    """A run that was killed and continued: which workers, when after their start, and what it came to."""

    kills: tuple[tuple[float, tuple[int, ...]], ...]
    starts: int
    final: dict[str, Any]
    losses: dict[int, str]


class Slice:
    """Storage, a folder of tokens, any number of runs."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.front = Front(folder / "storage")
        self.front.request("POST", "b", {"name": BUCKET}, project=PROJECT)
        source = folder / "text"
        source.mkdir()
        words = random.Random(0)
        for number in range(40):
            text = " ".join(str(words.randrange(10_000)) for _ in range(600))
            (source / f"{number:02}.txt").write_text(text)
        prepare([source], folder / "tokens")

    def whole(self) -> Killed:
        """A run that nobody disturbs."""
        return self._run("whole", [])

    def disturbed(self, number: int, seed: int) -> Killed:
        """A run with one to five kills, each of some workers at an instant after a start."""
        draw = random.Random(seed * 1_000_003 + number)
        kills = []
        for _ in range(draw.randint(1, 5)):
            workers = draw.sample(range(WORKERS), draw.choice((1, 1, 2, WORKERS)))
            kills.append((draw.uniform(0.5, LONGEST_S), tuple(sorted(workers))))
        return self._run(f"killed-{number}", kills)

    def _run(self, run: str, kills: list[tuple[float, tuple[int, ...]]]) -> Killed:
        happened: list[tuple[float, tuple[int, ...]]] = []
        starts = 0
        while True:
            starts += 1
            workers = self._start(run, starts)
            try:
                if kills:
                    after_s, whom = kills[0]
                    time.sleep(after_s)
                    if workers.alive() == WORKERS:
                        workers.send(signal.SIGKILL, whom)
                        happened.append(kills.pop(0))
                exits = workers.wait()
            finally:
                workers.kill()
            if exits == [0] * WORKERS:
                break
            assert happened, f"{run} failed, and nobody was killed\n{workers.output()}"
            assert starts < 20, f"{run} doesn't end\n{workers.output()}"
        return Killed(tuple(happened), starts, self._json(f"runs/{run}/final.json"), self._losses(run))

    def _start(self, run: str, start: int) -> Workers:
        arguments = ["tiny.toml", f"--set=train.steps={STEPS}", f"--set=checkpoint.every_steps={EVERY}"]
        # A worker killed before it has joined is otherwise waited for for two minutes.
        settings = [*SETTINGS, "cluster.start_timeout_s=25"]
        arguments += [*(f"--set={setting}" for setting in settings), "--name", run]
        environment = {
            "DATA_DIR": str(self.folder / "tokens"),
            "CHECKPOINT_BUCKET": BUCKET,
            "STORAGE_EMULATOR_HOST": self.front.url,
            "TENSORSTORE_GCS_HTTP_URL": self.front.url,
            "JAX_PLATFORMS": "cpu",
            # The first run fills it: a start is then not mostly compiling.
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        return Workers(WORKERS, arguments, environment, self.folder / "logs" / f"{run}-{start}")

    def _json(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.front.read(BUCKET, name).body)
        return content

    def _losses(self, run: str) -> dict[int, str]:
        """Every loss on record; one that was seen with two values is no loss."""
        mapping: dict[int, str] = {}
        listing = self.front.request("GET", f"b/{BUCKET}/o", prefix=f"runs/{run}/metrics/").json
        for item in listing["items"]:
            for line in self.front.read(BUCKET, item["name"]).body.splitlines():
                entry = json.loads(line)
                known = mapping.setdefault(entry["step"], entry["loss_hex"])
                assert known == entry["loss_hex"], f"{run}: step {entry['step']} has two losses"
        return mapping

    def close(self) -> None:
        self.front.close()


def same(run: Killed, other: Killed) -> bool:
    """Return whether losses, parameters and optimizer state of two runs are equal to the last bit."""
    return run.final == other.final and run.losses == other.losses

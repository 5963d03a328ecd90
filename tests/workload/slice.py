"""Workers of a slice as processes on loopback, to be killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.limits import HANG_S
from tests.workload.conftest import free_port
from workload.__main__ import main

# One layer, small enough that a start is nearly all there is to wait for.
SETTINGS = [
    "model.layers=1",
    "model.d_model=32",
    "model.d_ff=64",
    "data.sequence_length=32",
    "cluster.heartbeat_timeout_s=10",
]


class Workers:
    """A start of `workload train` on every worker."""

    def __init__(
        self,
        count: int,
        arguments: Sequence[str],
        environment: dict[str, str],
        logs: Path,
        only: Mapping[int, Sequence[str]] = MappingProxyType({}),
    ):
        coordinator = f"127.0.0.1:{free_port()}"
        logs.mkdir(parents=True)
        self.logs = [logs / f"worker-{worker}.log" for worker in range(count)]
        self.processes = []
        for worker in range(count):
            who = {"WORKER_COUNT": f"{count}", "WORKER_ID": f"{worker}", "COORDINATOR_ADDRESS": coordinator}
            with self.logs[worker].open("wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "workload", "train", *arguments, *only.get(worker, ())],
                        env={
                            **os.environ,
                            "JAX_PLATFORMS": "cpu",
                            "GCE_METADATA_HOST": "127.0.0.1:1",
                            **environment,
                            **who,
                        },
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Returns once it happened; all workers must be alive until then."""
        give_up = time.monotonic() + HANG_S
        while not happened():
            assert self.alive() == len(self.processes), f"a worker ended too soon\n{self.output()}"
            assert time.monotonic() < give_up, f"waited too long\n{self.output()}"
            time.sleep(0.1)

    def alive(self) -> int:
        return sum(process.poll() is None for process in self.processes)

    def send(self, what: signal.Signals, workers: Sequence[int]) -> None:
        """Sends a signal to some workers, all of which must be alive to get it."""
        assert self.alive() == len(self.processes), self.output()
        for worker in workers:
            self.processes[worker].send_signal(what)

    def wait(self) -> list[int]:
        """The exit statuses, once all have ended."""
        try:
            return [process.wait(timeout=HANG_S) for process in self.processes]
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"a worker doesn't end\n{self.output()}") from None

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def output(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in self.logs)


def train(arguments: Sequence[str]) -> int:
    """`workload train` in this process, whose signal handlers it leaves as they were."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        return main(arguments)
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


class RunFolder:
    """A run's folder."""

    def __init__(self, path: Path):
        self.path = path

    def json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())

    def has_begun_to_save(self, step: int) -> bool:
        return (self.path / "checkpoints" / str(step)).exists()

    def begun(self) -> list[int]:
        """Steps that have a folder, whole or not."""
        folders = (self.path / "checkpoints").glob("*")
        return sorted(int(folder.name) for folder in folders if folder.name.isdigit())

    def complete(self) -> list[int]:
        markers = (self.path / "checkpoints").glob("*/commit_success.txt")
        return sorted(int(marker.parent.name) for marker in markers)

    def losses(self) -> dict[int, set[str]]:
        """Every loss on record for a step, as hex: one, if the run is reproducible."""
        losses: dict[int, set[str]] = {}
        for path in (self.path / "metrics").glob("*.jsonl"):
            for entry in map(json.loads, path.read_text().splitlines()):
                losses.setdefault(entry["step"], set()).add(entry["loss_hex"])
        return losses

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [
            json.loads(path.read_text()) for path in sorted((self.path / "events").glob(f"*-{kind}.json"))
        ]

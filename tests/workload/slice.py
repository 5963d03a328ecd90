"""`workload train` in this process and in forks of one that has imported JAX, and a run's folder."""

import copy
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest import mock

import jax
from jax._src import compiler, distributed
from jax.extend import backend
from jax.sharding import Mesh

from tests.limits import HANG_S
from tests.workload.conftest import free_port
from workload.__main__ import main
from workload.train import loop
from workload.train.config import Config
from workload.train.step import Step
from workload.train.steps import make_step
from workload.train.update import TrainStep

# One layer, small enough that a start is nearly all there is to wait for.
SETTINGS = [
    "model.layers=1",
    "model.d_model=32",
    "model.d_ff=64",
    "data.sequence_length=32",
    "cluster.heartbeat_timeout_s=10",
    "compute.quick_compile=true",
]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["workload.train.launch", "workload.train.archive"])


_PROGRAMS: dict[Any, Callable[..., Any]] = {}


def _step(config: Config, mesh: Mesh, *place: Any) -> TrainStep:
    """Make a start's step, compiled once for equal starts of this process: tracing is most of a start.

    JAX's cache would give a second start the same program. Starts in other processes trace it: `Command`.
    """
    step = make_step(config, mesh, *place)
    if type(step) is Step:
        data = config.data.loss, config.data.sequence_length
        key = repr((config.decoder, config.optimizer, config.train, config.compute, data)), mesh, *place
        traced = step.compile
        step.compile = lambda: _PROGRAMS.get(key) or _PROGRAMS.setdefault(key, traced())  # type: ignore[method-assign]
    return step


loop.make_step = _step


@contextmanager
def cpu_devices(count: int) -> Iterator[list[jax.Device]]:
    """Give JAX so many CPU devices; arrays and programs made outside can't be mixed with those inside."""
    before = jax.config.jax_num_cpu_devices
    if count == len(jax.devices()):
        yield jax.devices()
        return
    try:
        yield _restarted(count)
    finally:
        _restarted(before)


def _restarted(count: int) -> list[jax.Device]:
    _PROGRAMS.clear()
    jax.clear_caches()
    backend.clear_backends()
    jax.config.update("jax_num_cpu_devices", count)
    return jax.devices()


class Command:
    """The command `workload` in a fork that has imported JAX; `prepare` is called there first."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
        prepare: Callable[[], Any] | None = None,
    ):
        self.log = log
        defaults = {"JAX_PLATFORMS": "cpu", "GCE_METADATA_HOST": "127.0.0.1:1"}
        given = (list(arguments), log, {**os.environ, **defaults, **environment}, prepare)
        self._process = _FORKS.Process(target=_command, args=given, daemon=True)
        self._process.start()

    @property
    def status(self) -> int | None:
        """Its exit status; negative: the signal that ended it; None while it runs."""
        return self._process.exitcode

    def send(self, what: signal.Signals) -> None:
        os.kill(self._process.pid or 0, what)

    def wait(self) -> int | None:
        self._process.join(HANG_S)
        return self.status

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _command(
    arguments: list[str], log: Path, environment: dict[str, str], prepare: Callable[[], Any] | None
) -> None:
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    # Read from the environment when JAX was imported.
    jax.config.update("jax_platforms", environment["JAX_PLATFORMS"])
    jax.config.update("jax_compilation_cache_dir", environment.get("JAX_COMPILATION_CACHE_DIR"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    _keep_programs_of_every_worker()
    if prepare:
        prepare()
    sys.exit(main(arguments))


def _keep_programs_of_every_worker() -> None:
    """Let each worker write into the compilation cache: JAX lets the first, and programs differ by worker."""
    write = compiler._cache_write

    def written(*arguments: Any) -> None:
        state = copy.copy(distributed.global_state)
        state.process_id = 0
        with mock.patch.object(compiler, "distributed", SimpleNamespace(global_state=state)):
            write(*arguments)

    compiler._cache_write = written


def limit_files(size_bytes: int) -> Callable[[], None]:
    """A `prepare` that limits the size of files, which stands for a full disk."""
    return partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


class Workers:
    """A start of `workload train` on every worker."""

    def __init__(
        self,
        count: int,
        arguments: Sequence[str],
        environment: dict[str, str],
        logs: Path,
        only: Mapping[int, Sequence[str]] = MappingProxyType({}),
        prepare: Callable[[], Any] | None = None,
    ):
        logs.mkdir(parents=True)
        every = {"WORKER_COUNT": f"{count}", "COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", **environment}
        self.logs = [logs / f"worker-{worker}.log" for worker in range(count)]
        self.processes = [
            Command(line, log, {**every, "WORKER_ID": f"{worker}"}, prepare)
            for worker, log in enumerate(self.logs)
            for line in [["train", *arguments, *only.get(worker, ())]]
        ]

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Returns once it happened; all workers must be alive until then."""
        give_up = time.monotonic() + HANG_S
        while not happened():
            assert self.alive() == len(self.processes), f"a worker ended too soon\n{self.output()}"
            assert time.monotonic() < give_up, f"waited too long\n{self.output()}"
            time.sleep(0.1)

    def alive(self) -> int:
        return sum(process.status is None for process in self.processes)

    def send(self, what: signal.Signals, workers: Sequence[int]) -> None:
        """Sends a signal to some workers, all of which must be alive to get it."""
        assert self.alive() == len(self.processes), self.output()
        for worker in workers:
            self.processes[worker].send(what)

    def wait(self) -> list[int | None]:
        """The exit statuses, once all have ended."""
        statuses = [process.wait() for process in self.processes]
        if None in statuses:
            self.kill()
            raise AssertionError(f"a worker doesn't end\n{self.output()}")
        return statuses

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

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


def command(run: str, steps: int, every: int, *overrides: str) -> list[str]:
    """A start of a small run that saves every so many steps."""
    settings = [
        *SETTINGS,
        f"train.steps={steps}",
        f"checkpoint.every_steps={every}",
        "optimizer.warmup_steps=1",
        *overrides,
    ]
    return ["train", "tiny.toml", "--name", run, *(f"--set={setting}" for setting in settings)]


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


def damage(step: Path) -> None:
    """Overwrite the arrays of a checkpoint; its marker stays."""
    for path in step.rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.write_bytes(b"\xff" * path.stat().st_size)

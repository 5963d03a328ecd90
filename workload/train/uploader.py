"""Processes of worker 0 that upload a run's curves to Vertex AI TensorBoard and to W&B.

Processes rather than threads: an outage there then costs curves only.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from workload.errors import ConfigError, Problem, TakenError, WorkloadError
from workload.runs import wandb_run
from workload.train.config import ObserveConfig

_PATIENCE_S = 10.0  # for the points of the last minute; a preempted host has 30 s in all


def require_packages(observe: ObserveConfig) -> None:
    """Raise ConfigError if `observe` names a project of W&B, whose package isn't installed."""
    if observe.wandb and not wandb_run.installed():
        rule = "needs the package wandb, which isn't installed here"
        fix = "for hosts, a line `wandb` in the requirements.txt of your code; here, pip install wandb"
        raise ConfigError("workload train", [Problem("observe.wandb", f'"{observe.wandb}"', rule, fix)])


def hopeless(error: BaseException) -> bool:
    """Return True if no start of this run follows `error`, so that none uploads what this one doesn't."""
    return isinstance(error, WorkloadError) and error.exit_code == 2 and not isinstance(error, TakenError)


class Uploader:
    """Context with `workload upload-curves` running; the processes also end if the trainer is killed."""

    def __init__(
        self,
        url: str,
        observe: ObserveConfig,
        patience_s: float = _PATIENCE_S,
        environment: Mapping[str, str] = os.environ,
    ):
        """Start uploading from `url` of the run to what `observe` names.

        Args:
            url: folder of the run.
            observe: names a TensorBoard, a project of W&B, both or neither.
            patience_s: wait at the end for the last points.
            environment: with the key of W&B; without, its file is written into the run's folder.
        """
        self._patience_s = patience_s
        self._processes: list[subprocess.Popen[bytes]] = []
        for view in _views(url, observe, environment):
            line = [sys.executable, "-m", "workload", "upload-curves", url, *view, "--with-parent"]
            # It ends with the pipe, not by what a terminal or Slurm signals to all processes of a job: its
            # signals stay blocked. Not those of W&B's service, which it starts: SIGTERM ends that, and it
            # begins another.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
            try:
                self._processes.append(subprocess.Popen(line, stdin=subprocess.PIPE))
            except OSError as error:
                print(f"curves: not uploaded: {error.strerror}", flush=True)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for process in self._processes:
            assert process.stdin
            process.stdin.close()
        if error and not hopeless(error):  # the next start uploads the rest, and is waited for
            return
        until_s = time.monotonic() + self._patience_s
        for process in self._processes:
            try:
                status = process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                wandb_run.clear(process.pid)
                print(f"curves: the last points weren't uploaded within {self._patience_s:g} s", flush=True)
            else:
                if status < 0:  # it reports failures of its own
                    print(f"curves: the last points weren't uploaded: signal {-status}", flush=True)


def _views(url: str, observe: ObserveConfig, environment: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the options of `workload upload-curves` for each view."""
    if observe.tensorboard:
        experiment = ["--experiment", observe.experiment] if observe.experiment else []
        yield ["--to", observe.tensorboard, *experiment]
    if not observe.wandb:
        return
    view, mode = ["--wandb", observe.wandb], environment.get("WANDB_MODE")
    if mode == "disabled":
        print("curves: $WANDB_MODE is disabled: nothing is sent to W&B", flush=True)
        return
    offline = mode in ("offline", "dryrun")
    if environment.get("WANDB_API_KEY") and not offline:
        yield view
        return
    reason = f"$WANDB_MODE is {mode}" if offline else "there is no $WANDB_API_KEY"
    print(
        f"curves: {reason}: nothing is sent to W&B; this start's end writes its file into {url}/wandb\n"
        f"    later: {wandb_run.again(url, observe.wandb)}",
        flush=True,
    )
    yield [*view, "--offline", f"{url}/wandb"]

"""What brings a run's curves to Vertex AI TensorBoard while it trains: a process of worker 0.

It is no thread of the trainer's: an outage of Vertex costs curves alone.
"""

import subprocess
import sys
from types import TracebackType
from typing import Self

from workload.train.config import ObserveConfig

_PATIENCE_S = 10.0  # for the points of the last minute; a host that is preempted has 30 s for all


class Uploader:
    """`workload upload-curves` until this is left; it ends by itself where the trainer is killed."""

    def __init__(self, url: str, observe: ObserveConfig):
        """`url` of the run. Starts nothing where `observe` names no TensorBoard."""
        self._process: subprocess.Popen[bytes] | None = None
        if observe.tensorboard:
            experiment = ["--experiment", observe.experiment] if observe.experiment else []
            line = ["upload-curves", url, "--to", observe.tensorboard, *experiment, "--with-parent"]
            self._process = subprocess.Popen([sys.executable, "-m", "workload", *line])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        if error:  # which is reported first; the process ends beside that
            return
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            print(f"curves: the last points weren't uploaded within {_PATIENCE_S:g} s", flush=True)

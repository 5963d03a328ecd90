"""Process of worker 0 that uploads a run's curves to Vertex AI TensorBoard.

A process rather than a thread: an outage of Vertex then costs curves only.
"""

import subprocess
import sys
from types import TracebackType
from typing import Self

from workload.train.config import ObserveConfig

_PATIENCE_S = 10.0  # for the points of the last minute; a preempted host has 30 s in all


class Uploader:
    """Context with `workload upload-curves` running; the process also ends if the trainer is killed."""

    def __init__(self, url: str, observe: ObserveConfig, patience_s: float = _PATIENCE_S):
        """Start uploading from `url` of the run, if `observe` names a TensorBoard.

        `patience_s`: wait at the end for the last points.
        """
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        if observe.tensorboard:
            experiment = ["--experiment", observe.experiment] if observe.experiment else []
            line = ["upload-curves", url, "--to", observe.tensorboard, *experiment, "--with-parent"]
            try:
                self._process = subprocess.Popen([sys.executable, "-m", "workload", *line])
            except OSError as error:
                print(f"curves: not uploaded: {error.strerror}", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        if error:  # report it without waiting for the process
            return
        try:
            self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            print(f"curves: the last points weren't uploaded within {self._patience_s:g} s", flush=True)

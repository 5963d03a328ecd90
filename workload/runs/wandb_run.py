"""Weights & Biases as a view of a run's metrics: sent, or as a file for `wandb sync`.

Needs the package `wandb`, which isn't locked: it is a person's, or of the requirements of the run's code.
https://docs.wandb.ai/ref/python/init
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from workload.errors import BoardError
from workload.runs.metrics import Point
from workload.runs.store import open_store
from workload.runs.vertex_ids import id_of

PROJECT = re.compile(r"([\w.-]{1,128}/)?[\w.-]{1,128}", re.ASCII)
IS_PROJECT = "ENTITY/PROJECT, of letters, digits, - _ ."


def installed() -> bool:
    """Return True if the package is there; a folder `wandb`, as the package leaves them, isn't it."""
    spec = find_spec("wandb")
    return spec is not None and spec.origin is not None


def file_of(url: str) -> str:
    """Return the name of the file of the run at `url`, in the folder that `wandb sync` takes."""
    return f"offline-run-{id_of(url)}/run-{id_of(url)}.wandb"


class WandbRun:
    """Run of a project; continued if it exists. Its steps are those of the metrics, each sent once, whole."""

    def __init__(self, project: str, url: str, folder: str = ""):
        """Create or continue a run.

        Args:
            project: PROJECT or ENTITY/PROJECT.
            url: of the run; its id is derived from it, so that every start continues it.
            folder: URL or folder for the file, which holds the whole run and replaces an earlier start's: W&B
                appends what is synced again. Empty: the run is sent.

        Raises:
            BoardError: the package is missing, or W&B refuses.
        """
        try:
            from wandb import Settings, init, teardown  # type: ignore[import-not-found]
        except ImportError:
            raise BoardError("W&B: wandb isn't installed\n    fix: pip install wandb") from None
        self._url, self._folder = url, open_store(folder) if folder else None
        self.name = f"W&B {project}, {url.rpartition('/')[2]}{f', a file in {folder}' if folder else ''}"
        self._rows: dict[int, dict[str, float]] = {}
        self._teardown = teardown
        self._scratch = tempfile.TemporaryDirectory(prefix=_prefix(os.getpid()), ignore_cleanup_errors=True)
        entity, _, name = project.rpartition("/")
        quiet = {"console": "off", "silent": True, "disable_git": True, "save_code": False}
        own = {"x_disable_stats": True, "x_disable_meta": True, "x_save_requirements": False}
        with suppress(Exception):
            teardown()  # after an outage: else `init` ends the run before, whose service may be gone
        try:
            self._run = init(
                entity=entity or None,
                project=name,
                id=id_of(url),
                name=url.rpartition("/")[2],
                resume=None if folder else "allow",
                reinit="finish_previous",
                mode="offline" if folder else "online",
                dir=self._scratch.name,
                # This machine and this process, with its command line and packages, aren't the run's.
                settings=Settings(**quiet, **own),
            )
            self._next: int = self._run.step
        except Exception as error:
            fix = f"`wandb login`, or $WANDB_API_KEY; where W&B can be reached: {again(url, project)}"
            raise BoardError(f"W&B {project}: {error}\n    fix: {fix}") from error

    def write(self, curves: Mapping[str, Mapping[int, Point]]) -> None:
        """Write points by curve and step; the last step's wait for the next one, or for `close`.

        Steps that W&B has are left out: it takes none again.

        Raises:
            BoardError: some weren't written.
        """
        for curve, points in curves.items():
            for step, point in points.items():
                if step >= self._next:
                    self._rows.setdefault(step, {"_timestamp": point.time_s})[curve] = point.value
        self._log(sorted(self._rows)[:-1])

    def close(self, whole: bool) -> None:
        """Write the last step, unless another start may add to it (not `whole`); end, and store the file.

        Raises:
            BoardError: it isn't written.
            StoreError: the file isn't stored.
        """
        if whole or self._folder:
            self._log(sorted(self._rows))
        with self._reporting("ended"):
            self._run.finish()
            self._teardown()  # returns once the file is written, which `finish` may not
            files = [path.read_bytes() for path in Path(self._scratch.name).glob("wandb/*/*.wandb")]
        if self._folder and self._next:
            self._folder.write(file_of(self._url), files[0])

    def _log(self, steps: list[int]) -> None:
        with self._reporting("written to"):
            for step in steps:
                self._run.log(self._rows.pop(step), step=step)
                self._next = step + 1

    @contextmanager
    def _reporting(self, verb: str) -> Iterator[None]:
        """Turn any exception into a BoardError: the package's version isn't ours, nor its process."""
        try:
            yield
        except Exception as error:
            fix = "repeat the command: it continues with the rows that are missing"
            text = f"{self.name}: can't be {verb}: {type(error).__name__}: {error}"
            raise BoardError(f"{text}\n    fix: {fix}") from error


def clear(process: int) -> None:
    """Delete what a process that was killed left on this machine's disk."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix(process)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(process: int) -> str:
    return f"wandb-{process}-"


def again(url: str, project: str) -> str:
    """Return the command that sends what W&B lacks of the run at `url`."""
    return f"workload upload-curves {url} --wandb {project} --once"

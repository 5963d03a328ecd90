"""Weights & Biases as a view of a run's metrics: online, or as files for `wandb sync`.

Needs the package `wandb`, which isn't locked: the command runs on a person's machine, with their login.
https://docs.wandb.ai/ref/python/init
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from workload.errors import BoardError
from workload.runs.metrics import Point
from workload.runs.vertex_ids import id_of


class WandbRun:
    """Run of a project; continued if it exists."""

    def __init__(self, project: str, url: str, folder: str = ""):
        """Create or continue a run.

        Args:
            project: PROJECT or ENTITY/PROJECT.
            url: of the run; its id is derived from it, so that every start of the command continues it.
            folder: for files; empty sends them.

        Raises:
            BoardError: the package is missing, or W&B refuses.
        """
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError:
            raise BoardError("W&B: wandb isn't installed\n    fix: pip install wandb") from None
        self.name = f"W&B {project}, {url.rpartition('/')[2]}"
        entity, _, name = project.rpartition("/")
        quiet = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False)
        try:
            self._run = wandb.init(
                entity=entity or None,
                project=name,
                id=id_of(url),
                name=url.rpartition("/")[2],
                resume="allow",
                mode="offline" if folder else "online",
                dir=folder or None,
                settings=quiet,
            )
        except Exception as error:
            fix = "`wandb login`, or write files with --offline FOLDER"
            raise BoardError(f"W&B {project}: {error}\n    fix: {fix}") from error

    def write(self, curves: Mapping[str, Mapping[int, Point]]) -> None:
        """Write points by curve and step, without steps before the run's last: W&B accepts none.

        Raises:
            BoardError: some weren't written.
        """
        rows: dict[int, dict[str, float]] = {}
        for curve, points in curves.items():
            for step, point in points.items():
                rows.setdefault(step, {})[curve] = point.value
        with self._reporting("written to"):
            for step in sorted(rows):
                if step >= self._run.step:
                    self._run.log(rows[step], step=step)

    def close(self) -> None:
        """Write the last row and end.

        Raises:
            BoardError: it isn't written.
        """
        with self._reporting("ended"):
            self._run.finish()

    @contextmanager
    def _reporting(self, verb: str) -> Iterator[None]:
        """Turn any exception into a BoardError: the package's version isn't ours, nor its process."""
        try:
            yield
        except Exception as error:
            fix = "repeat the command: it continues with the rows that are missing"
            text = f"{self.name}: can't be {verb}: {type(error).__name__}: {error}"
            raise BoardError(f"{text}\n    fix: {fix}") from error

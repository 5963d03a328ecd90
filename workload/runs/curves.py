"""Command `workload upload-curves`: copy a run's curves to Vertex AI TensorBoard or W&B, live or later.

Reads the run's stream of metrics (metrics.py) and sends each point once per start of this command; Vertex
overwrites existing steps.
"""

import argparse
import re
import select
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from settings_schema import foreign
from settings_schema.foreign import ForeignError
from workload.arguments import parser
from workload.errors import BoardError, ConfigError, Problem, RunError, StoreError
from workload.runs.location import of_scheme
from workload.runs.metrics import FOLDER, Metrics, Point, kept
from workload.runs.store import Reader, open_store
from workload.runs.vertex import MOST_POINTS, Board
from workload.runs.vertex_ids import ID, IS_ID, IS_TENSORBOARD, TENSORBOARD, id_of
from workload.runs.wandb_run import IS_PROJECT, PROJECT, WandbRun

_LONGEST_S = 86400.0  # between two uploads
_ALONE_S = 600  # for the last points after a trainer that was killed; one that ends in order kills it earlier
_RUN_URL = re.compile(r"gs://[^/]+/.*[^/]/*|(?!gs:/).*[^/]/*")
_EXAMPLES = """  workload upload-curves gs://my-project-checkpoints/runs/tiny --once \\
    --to projects/my-project/locations/us-east5/tensorboards/1
  workload upload-curves gs://my-project-checkpoints/runs/tiny --wandb my-team/my-project"""


def upload(metrics: Metrics, board: Board | WandbRun) -> int:
    """Send new points; return their number.

    Raises:
        BoardError: some weren't written.
    """
    sent, count, batch = 0, 0, dict[str, dict[int, Point]]()
    for row in kept(metrics.new()):
        for curve, value in row.numbers.items():
            batch.setdefault(curve, {})[row.step] = Point(row.step, value, row.time_s)
            count += 1
            if count == MOST_POINTS:
                board.write(batch)
                sent, count, batch = sent + count, 0, {}
    if batch:
        board.write(batch)
    return sent + count


def main(arguments: Sequence[str]) -> int:
    """Upload every minute until the end, by signal or of the parent; return 0 after the last points.

    Raises:
        BoardError, StoreError: the last points couldn't be read or written, twice if the first attempt was
            on an earlier connection. Earlier failures are printed, and all points uploaded again.
    """
    options = _options(arguments)
    url = options.run.rstrip("/")
    store = open_store(url)
    metrics, board, trouble = Metrics(store), None, ""
    if options.once and not metrics.exist():
        fix = "name the folder of a run that trained, e.g. gs://BUCKET/runs/RUN"
        raise RunError(f"{url}/{FOLDER}: no metrics\n    fix: {fix}")
    ending = threading.Event()
    if not options.once and not options.with_parent:
        _end_at_signals(ending)

    def ended(within_s: float) -> bool:
        if options.with_parent:  # closed however it ends, and before this process looks for the first time
            return bool(select.select([sys.stdin], [], [], within_s)[0])
        return ending.wait(within_s)

    while True:
        last = options.once or ended(0.0)
        if last and options.with_parent:
            signal.alarm(_ALONE_S)
        begun = board is not None
        try:
            if board is None:
                board = _board(options, url)
                print(f"curves: uploading to {board.name}", flush=True)
            points = upload(metrics, board)
            if points or options.once:
                print(f"curves: {points} points uploaded", flush=True)
            if last:
                if isinstance(board, WandbRun):
                    board.close(whole=not _continues(store))
                return 0
        except (BoardError, StoreError) as error:
            # One that was there may have ended with the trainer, by Slurm's signal to all processes of a
            # job: W&B's service does. It is begun once more.
            if last and not begun:
                raise
            if str(error) != trouble:
                print(f"curves: {error}", flush=True)
            metrics, board, trouble = Metrics(store), None, str(error)
        if not last:
            ended(options.every_s)


def _board(options: argparse.Namespace, url: str) -> Board | WandbRun:
    if options.wandb:
        known = url if url.startswith("gs://") else str(Path(url).absolute())
        return WandbRun(options.wandb, known, options.offline)
    run = url.rpartition("/")[2]
    return Board(options.to, options.experiment or id_of(run), run)


def _continues(store: Reader) -> bool:
    """Return True if another start may evaluate the last step, which a notice left no time for."""
    try:
        state = foreign.text(foreign.parse(store.read("status.json")), "state")
    except (StoreError, ForeignError):
        return False
    return state in ("running", "preempted")


def _end_at_signals(ending: threading.Event) -> None:
    """Set `ending` at the first SIGTERM or Ctrl-C; a second signal ends the process at once."""

    def end(number: int, _: object) -> None:
        ending.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    about = "Copy a run's curves to Vertex AI TensorBoard or W&B every minute, until SIGTERM or Ctrl-C."
    options = parser("workload upload-curves", about, _EXAMPLES)
    options.add_argument("run", metavar="RUN_URL", help="gs://BUCKET/runs/RUN, or a folder")
    options.add_argument(
        "--to", default="", metavar="TENSORBOARD", help="projects/P/locations/L/tensorboards/T"
    )
    options.add_argument(
        "--wandb", default="", metavar="PROJECT", help="[ENTITY/]PROJECT of Weights & Biases"
    )
    text = "write W&B's file there at the end, for `wandb sync`, and send nothing"
    options.add_argument("--offline", default="", metavar="FOLDER", help=text)
    text = "group of runs that are shown together (default: the run's name)"
    options.add_argument("--experiment", default="", metavar="NAME", help=text)
    options.add_argument("--once", action="store_true", help="upload all points, then end")
    text = "end with the process that started this one, which holds a pipe to it; no signal counts"
    options.add_argument("--with-parent", action="store_true", help=text)
    options.add_argument("--every-s", type=float, default=60.0, metavar="SECONDS", help="(default: 60)")
    given = options.parse_args(list(arguments))
    problems = of_scheme("RUN_URL", given.run)
    if not problems and not _RUN_URL.fullmatch(given.run):
        rule = "must be the folder of a run: gs://BUCKET/runs/RUN, or one of this machine"
        problems.append(Problem("RUN_URL", repr(given.run), rule, "copy it from the trainer's first lines"))
    if given.wandb and not PROJECT.fullmatch(given.wandb):
        fix = "e.g. --wandb my-team/my-project"
        problems.append(Problem("--wandb", repr(given.wandb), f"must be {IS_PROJECT}", fix))
    problems += of_scheme("--offline", given.offline)
    if given.offline and not given.wandb:
        problems.append(Problem("--offline", given.offline, "requires --wandb", "name a project of W&B"))
    elif bool(given.wandb) == bool(given.to):
        value, fix = "both" if given.to else "neither", "name a TensorBoard, or a project of W&B"
        problems.append(Problem("--to, --wandb", value, "exactly one must be given", fix))
    elif given.to and not TENSORBOARD.fullmatch(given.to):
        fix = "copy it from `gcloud ai tensorboards list --region=L`"
        problems.append(Problem("--to", given.to, f"must be {IS_TENSORBOARD}", fix))
    if given.experiment and not ID.fullmatch(given.experiment):
        fix = f"e.g. {id_of(given.experiment)}"
        problems.append(Problem("--experiment", repr(given.experiment), f"must be {IS_ID}", fix))
    if not 0 < given.every_s <= _LONGEST_S:
        rule = f"must be above 0 and at most {_LONGEST_S:.0f} (a day)"
        problems.append(Problem("--every-s", str(given.every_s), rule, "e.g. --every-s 60"))
    if problems:
        raise ConfigError("workload upload-curves", problems)
    return given

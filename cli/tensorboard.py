"""`tpu tensorboard`: the curves of a run, or of all, by TensorBoard."""

import os
import shlex
import shutil
from pathlib import Path

import click

from cli import options
from cli.command import Command
from infra.engine.settings import from_file
from infra.errors import CommandError, InputError
from infra.layers.queue.jobs.submission import curves
from infra.layers.storage.settings import StorageSettings
from workload.runs.location import RUN


@click.command(cls=Command, examples=["dev", "dev tiny"])
@options.environment
@click.argument("run", metavar="[RUN]", default="", help="its name, as in runs/RUN; default: all")
@click.option("--port", type=int, default=6006, show_default=True, help="Port of the page on this machine.")
@click.pass_obj
def tensorboard(root: Path, environment: str, run: str, port: int) -> int:
    """Become TensorBoard, which reads the bucket with the current login."""
    settings = options.with_layer("storage", StorageSettings, from_file(environment, root))
    if run and not RUN.fullmatch(run):
        raise InputError(
            f"RUN: {run} is no name of a run: a-z, 0-9, '-', '_' and '.', first a letter or digit\n"
            f"    fix: a name that tpu runs {environment} lists"
        )
    line = ["tensorboard", "--logdir", curves(settings, run), "--port", str(port)]
    print(shlex.join(line), flush=True)
    if shutil.which(line[0]) is None:
        raise CommandError(
            "tensorboard isn't installed here\n"
            "    fix: pip install tensorboard gcsfs, in an environment of its own; then that line\n"
            f"    or: tpu runs show {environment} {run or 'RUN'}, a page with the same curves"
        )
    os.execvp(line[0], line)

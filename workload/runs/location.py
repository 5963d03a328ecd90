"""Locations of runs, below a folder or the bucket that the environment names."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from settings_schema.rules import SCHEME
from workload.errors import Problem

RECORD, TOKENIZER = "config.json", "tokenizer"  # of a run: its settings, its tokenizer's folder
RUN = re.compile(r"[a-z0-9][a-z0-9._-]*")
CHECKPOINT = re.compile(r"run:(?P<run>.+)@(?P<step>[0-9]+|best)")
IS_CHECKPOINT = "must name a run and one of its steps, or best, since the newest changes"


def of_run(folder: str, run: str, root: str | None) -> tuple[str, list[Problem]]:
    """Return the URL of a run, and problems of the arguments.

    Args:
        folder: of all runs of its kind, `runs` or `extractions`.
        run: its name.
        root: a folder or gs:// URL (default: the bucket $CHECKPOINT_BUCKET).
    """
    bucket = os.environ.get("CHECKPOINT_BUCKET")
    root = root or (f"gs://{bucket}" if bucket else "")
    problems = []
    if not root:
        fix = "set it, or store the run in a folder by --dir DIR"
        problems.append(Problem("$CHECKPOINT_BUCKET", "(not set)", "must name the bucket for the run", fix))
    if not RUN.fullmatch(run):
        rule = "must be made of a-z, 0-9, '-', '_' and '.', and begin with a letter or digit"
        problems.append(Problem("--name", repr(run), rule, "e.g. --name first"))
    problems += of_scheme("--dir", root)
    if not root.startswith("gs://"):
        root = str(Path(root).absolute())
    return f"{root.rstrip('/')}/{folder}/{run}", problems


def of_scheme(key: str, url: str) -> list[Problem]:
    """Return problems of the scheme, if `url` has one."""
    if url.startswith("gs://") or not (scheme := SCHEME.match(url)):
        return []
    rule = f"{scheme[0]} isn't supported: a run is stored at gs://BUCKET/… or in a folder"
    return [Problem(key, url, rule, "gs://BUCKET/…, or ./… for a folder of that name")]


def of_steps(url: str, environment: Mapping[str, str]) -> str:
    """Return the URL of a run's checkpoints: in $STEPS_BUCKET if set and the run is in $CHECKPOINT_BUCKET."""
    own, steps = f"gs://{environment.get('CHECKPOINT_BUCKET')}/", environment.get("STEPS_BUCKET")
    return f"gs://{steps}/{url.removeprefix(own)}" if steps and url.startswith(own) else url

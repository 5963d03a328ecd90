"""Starts of `workload preprocess`, and their output."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

from tests.limits import HANG_S
from tests.spark import environment


def command(out: Path | str, source: Path | str, *more: str, **settings: object) -> list[str]:
    """A command line; `output__shards` is output.shards."""
    given = {"input__sources": source, "output__url": out, "output__shards": 5, "runtime__piece_mib": 1}
    given |= {"output__sequence_length": 64} | settings
    sets = [word for key, value in given.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
    return ["text.toml", *sets, *more]


def start(arguments: list[str], status: int = 0, **variables: str) -> str:
    """A start of its own process; what it wrote to stdout and stderr."""
    run = environment.run(["-m", "workload", "preprocess", *arguments], variables)
    assert run.returncode == status, run.stdout + run.stderr
    return run.stdout + run.stderr


def starts(commands: list[list[str]], **variables: str) -> list[tuple[int, str]]:
    """Several in one process: of each its status and what it wrote."""
    run = subprocess.run(
        [environment.python(), "-m", "tests.workload.preprocess.starts"],
        input="".join(json.dumps(item) + "\n" for item in commands),
        capture_output=True,
        text=True,
        cwd=environment.ROOT,
        env={**os.environ, **variables, "PYTHONPATH": str(environment.ROOT)},
        timeout=HANG_S,
    )
    result, shown = [], ""
    for line in run.stdout.splitlines(keepends=True):
        if line.startswith("status "):
            result.append((int(line.split()[1]), shown))
            shown = ""
        else:
            shown += line
    assert len(result) == len(commands), run.stdout + run.stderr
    return result


def content(out: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder, by name."""
    files = [path for path in out.rglob("*") if path.is_file()]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run_folder(out: Path) -> Path:
    """Folder of the only run."""
    (result,) = out.iterdir()
    return result

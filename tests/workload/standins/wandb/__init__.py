"""Stand-in for the package `wandb`, as the workload uses it, with a folder, $WANDB_SERVER, for W&B.

ENTITY.PROJECT.ID.jsonl there has the rows of a run, calls.jsonl the arguments of each `init`. A file for
`wandb sync` has the same lines. $WANDB_FAULT names a call that fails. tests/workload/test_wandb.py holds it
to the package itself.
"""

import json
import os
import time
from pathlib import Path


class UsageError(Exception):
    """Refusal."""


class Settings(dict):
    """Settings by name."""


def init(**given):
    """Begin or continue a run."""
    server, run = Path(os.environ["WANDB_SERVER"]), given["id"]
    with (server / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(given) + "\n")
    _fail("init")
    if _broken:
        raise BrokenPipeError("the run before can't be ended: the service has ended")
    if given["mode"] == "online":
        if not os.environ.get("WANDB_API_KEY"):
            raise UsageError("api_key not configured (no-tty). call wandb.login(key=[your_api_key])")
        return _Run(server / f"{given['entity']}.{given['project']}.{run}.jsonl")
    folder = Path(given["dir"], "wandb", f"offline-run-{time.time_ns()}-{run}")
    folder.mkdir(parents=True)
    return _Run(folder / f"run-{run}.wandb")


class _Run:
    """A run: each step is written when the next one begins, or at the end."""

    def __init__(self, file: Path):
        file.touch()
        self._file, self._row = file, {}
        lines = file.read_text().splitlines()
        self.step = json.loads(lines[-1])["_step"] + 1 if lines else 0

    def log(self, row, step):
        """Add to a step, which is never before the last one."""
        _fail("log")
        assert step >= self.step, "W&B would leave it out"
        if step > self.step:
            self._commit()
        self.step = step
        self._row |= {"_step": step, **row}

    def finish(self):
        """Let the service write the last step."""
        _fail("finish")
        _finished.append(self)

    def _commit(self):
        if self._row:
            with self._file.open("a") as file:
                file.write(json.dumps(self._row) + "\n")
        self._row = {}


_finished: list[_Run] = []
_broken: list[str] = []


def teardown():
    """Wait for the service, which writes what it has; the next run has a new one."""
    _broken.clear()
    while _finished:
        _finished.pop()._commit()


def _fail(call):
    if call == "finish" and os.environ.get("WANDB_FAULT") == "hang":
        time.sleep(3600)
    if os.environ.get("WANDB_FAULT") == call:
        _broken.extend([call] if call == "log" else [])
        raise BrokenPipeError(f"{call}: the service has ended")

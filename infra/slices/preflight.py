"""Preflight's cached verdicts on the runs of slices; nothing is compiled here.

The workload is a package of its own, called by its command line.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from infra.settings.commands import training
from infra.settings.sources import ROOT
from infra.slices.nodes import Node

_NO_CACHED_RESULT = 4  # `workload preflight --cached`: no cached result
TIMEOUT_S = 60.0  # to read an answer that was kept
_WORDS = {"yes": "fits", "no": "does not fit", "uncertain": "may not fit"}


@dataclass(frozen=True)
class Verdict:
    """Result of preflight for messages; `warn` unless it fits."""

    line: str
    warn: bool


def of(nodes: Iterable[Node]) -> list[Verdict]:
    """Return the verdicts on the training runs of some nodes, without repetitions."""
    jobs = ((node.run, node.kind.name, len(node.together) or 1) for node in nodes if node.run)
    verdicts = (verdict_on(run, kind, together) for run, kind, together in dict.fromkeys(jobs))
    return [words for words in verdicts if words]


@cache  # a call takes a second, and a program needs one for each slice
def verdict_on(run: str, accelerator_type: str, slices: int = 1) -> Verdict | None:
    """Return the verdict on a slice's `run`, or the command to get one; None if it trains nothing.

    Args:
        run: what the slice runs, e.g. `train tiny.toml --set train.steps=20`.
        accelerator_type: e.g. `v6e-16`.
        slices: how many of them run it together.
    """
    run_training = training(run)
    if run_training is None:
        return None
    several = ["--slices", str(slices)] if slices > 1 else []
    arguments = [
        run_training.config,
        "--slice",
        accelerator_type,
        *several,
        *(f"--set={change}" for change in run_training.changes),
    ]
    where = f"{slices} x {accelerator_type}" if slices > 1 else accelerator_type
    line = [sys.executable, "-m", "workload", "preflight", *arguments, "--cached", "--json"]
    command = f"tpu preflight {shlex.join(arguments)}"
    try:
        answer = subprocess.run(
            line, capture_output=True, text=True, cwd=ROOT, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Verdict(f"`{run}` isn't checked: no answer within {TIMEOUT_S:g} s; run {command}", warn=True)
    if answer.returncode == _NO_CACHED_RESULT:
        return Verdict(f"no preflight of `{run}` on {where} yet; run {command}", warn=True)
    try:
        answer_json = json.loads(answer.stdout)
        verdict, reason = answer_json["fits"], answer_json["reason"]
    except (ValueError, KeyError):
        return Verdict(f"`{run}` can't be checked ({command}): {answer.stderr.strip()}", warn=True)
    fits = f"{_WORDS[verdict]} {where}: {reason}"
    return Verdict(f"preflight of `{run}`: {fits}", warn=verdict != "yes")

"""Preflight's cached verdicts on the runs of slices, and extractions' sizes; nothing is compiled here.

The workload is a package of its own, called by its command line.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from infra.catalog.book import BOOK
from infra.errors import InputError
from infra.settings.commands import PACKAGED, Extraction, extraction, training
from infra.settings.sources import PROGRAM, ROOT
from infra.slices import price
from infra.slices.nodes import Node

_WRONG_CONFIG, _NO_CACHED_RESULT = 2, 4  # exit statuses of `workload preflight --cached`
_IN_BUCKET = re.compile(r"^(--set=(?:model\.weights|train\.init_from))=gs://.*")
TIMEOUT_S = 60.0  # to read an answer that was kept
_WORDS = {"yes": "fits", "no": "does not fit", "uncertain": "may not fit"}


@dataclass(frozen=True)
class Verdict:
    """Result of preflight for messages; `warn` unless it fits."""

    line: str
    warn: bool


def of(nodes: Iterable[Node], code: str | None = None) -> list[Verdict]:
    """Return the verdicts on the runs of some nodes, without repetitions; `code`: of tpu:code.

    Raises InputError for a run that its program would refuse, and for a folder that doesn't exist and isn't
    published.
    """
    folder, running = ROOT / (code or ""), [node for node in nodes if node.run]
    if not folder.is_dir():
        if all(node.bundle for node in running):  # whose code hosts have
            return []
        fix = "create it, or name the folder of your code"
        raise InputError(f'tpu:code = "{code}": must be a folder of {ROOT}\n    fix: {fix}')
    jobs = (
        (
            str(node.run),
            node.kind.name,
            len(node.together) or 1,
            node.zone.rpartition("-")[0],
            folder,
            price.rows([node])[0].hourly,
        )
        for node in running
    )
    verdicts = (verdict_on(*job) for job in dict.fromkeys(jobs))
    return [words for words in verdicts if words]


@cache  # a call takes a second, and a program needs one for each slice
def verdict_on(
    run: str,
    accelerator_type: str,
    slices: int = 1,
    region: str = "",
    folder: Path = ROOT,
    hourly: float | None = None,
) -> Verdict | None:
    """Return the verdict on a slice's `run`, or the command to get one; None if it has none.

    Args:
        run: what the slice runs, e.g. `train tiny.toml --set train.steps=20`.
        accelerator_type: e.g. `v6e-16`.
        slices: how many of them run it together.
        region: of an extraction's output.
        folder: of configs that aren't packaged.
        hourly: dollars of a slice, None where unknown.

    Raises InputError for a config that its program would refuse.
    """
    if extracts := extraction(run):
        return _size(run, extracts, accelerator_type, region, folder, hourly)
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
    # Only hosts read weights from the bucket; their sizes are those of a copy.
    typed = [_IN_BUCKET.sub(r"\1=FOLDER", argument) for argument in arguments]
    copied = ", FOLDER being a copy of these weights" if typed != arguments else ""
    command = f"{_at(folder)}tpu preflight {shlex.join(typed)}{copied}"
    answer = _answer("preflight", *arguments, "--cached", "--json", folder=folder)
    if answer is None:
        return Verdict(f"`{run}` isn't checked: no answer within {TIMEOUT_S:g} s; run {command}", warn=True)
    if answer.returncode == _NO_CACHED_RESULT:
        return Verdict(f"no preflight of `{run}` on {where} yet; run {command}", warn=True)
    _refuse_wrong(answer, run, where, run_training.config, folder)
    try:
        answer_json = json.loads(answer.stdout)
        verdict, reason = answer_json["fits"], answer_json["reason"]
    except (ValueError, KeyError):
        return Verdict(f"`{run}` can't be checked ({command}): {answer.stderr.strip()}", warn=True)
    fits = f"{_WORDS[verdict]} {where}: {reason}"
    return Verdict(f"preflight of `{run}`: {fits}", warn=verdict != "yes")


def _refuse_wrong(
    answer: subprocess.CompletedProcess[str], run: str, where: str, config: str, folder: Path
) -> None:
    """Raise InputError if a run's program refuses its settings, by a config that is here.

    One that isn't may be in a slice's own bundle.
    """
    known = config in (*PACKAGED["train"], *PACKAGED["extract"]) or (folder / config).is_file()
    if answer.returncode == _WRONG_CONFIG and known:
        raise InputError(f"`{run}` on {where}: {answer.stderr.strip().removeprefix('workload: ')}")


def _size(
    run: str, extracts: Extraction, accelerator_type: str, region: str, folder: Path, hourly: float | None
) -> Verdict:
    """Return size, price and predicted time of an extraction's output, or the command to get them."""
    words = ("extract", *extracts.words, "--estimate", "--slice", accelerator_type)
    command = f"{_at(folder)}tpu workload {shlex.join(words)}"
    answer = _answer(*words, "--json", folder=folder)
    if answer:
        _refuse_wrong(answer, run, accelerator_type, extracts.config, folder)
    try:
        facts = json.loads(answer.stdout if answer else "")
        size_bytes, hours = facts["size_bytes"], facts["predicted_host_hours"]
    except (ValueError, KeyError):
        reason = f"no answer within {TIMEOUT_S:g} s"
        if answer:
            reason = answer.stderr.strip().partition("\n")[0].removeprefix("workload: ")
        if "gs://" in reason:  # only hosts mount the bucket
            of = textwrap.shorten(run, 40, placeholder=" …")
            local = "extract CONFIG … --set model.weights=FOLDER --stream FOLDER --estimate"
            command = f"{_at(folder)}tpu workload {local}"
            line = f"size and price of the output of `{of}` aren't known from here; next: {command}"
            return Verdict(line, warn=True)
        return Verdict(f"the output of `{run}` isn't known here ({command}): {reason}", warn=True)
    monthly = BOOK["storage.standard"].price(region).dollars
    paid = "price unknown" if monthly is None else f"${size_bytes / 2**30 * monthly:,.2f} a month"
    chips = "price unknown" if hourly is None else f"${hours * hourly:,.2f}"
    return Verdict(
        f"`{run}` stores {size_bytes / 1e9:,.3g} GB, {paid} in STANDARD in {region};"
        f" predicted: {hours:.2g} hours of one {accelerator_type}, {chips}, shared by all members",
        warn=False,
    )


def _at(folder: Path) -> str:
    """Return the beginning of a command line that runs in a folder of the checkout."""
    return "" if folder == ROOT else f"cd {shlex.quote(str(folder.relative_to(ROOT)))} && "


def _answer(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str] | None:
    """Run a command of the workload in a folder; None if it takes too long."""
    line = [sys.executable, "-m", "workload", *arguments]
    path = os.pathsep.join(filter(None, (str(PROGRAM), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        return subprocess.run(
            line, capture_output=True, text=True, cwd=folder, env=environment, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None

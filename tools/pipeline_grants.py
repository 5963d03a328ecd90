"""Who of the pipeline may do what, and what became of runs without it: the tables of docs/pipeline.md and
docs/pipeline-grants.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from infra.layers.pipeline import access
from infra.layers.pipeline.settings import SMALL_ROLE, TRAININGS, WORKER, PipelineSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import GcpSettings, Settings

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks/results/pipeline_grants.json"
"""What `python -m tests.proofs grants` has found."""
_SHOWN = 180


@dataclass(frozen=True)
class _Choice:
    """Settings that decide which grants there are."""

    train: str
    role: str
    existing: bool


_CHOICES = [_Choice(*one) for one in product(TRAININGS, (WORKER, SMALL_ROLE), (False, True))]


def table() -> str:
    """A row for each grant, with the settings that it is for where it isn't for all."""
    lines = ["| account | role | on | for | without it |", "| --- | --- | --- | --- | --- |"]
    found = {str(row["grant"]): row for row in results()["rows"]}
    for one, choices in every().items():
        lines.append(f"| {_row(one)}{_only(choices)} | {found[one.named]['outcome']} |")
    return "\n".join(lines)


def removed() -> str:
    """A row for each grant that was taken away, with the sentence that names it."""
    stored = results()
    lines = ["| without | comes | shown by | sentence | on |", "| --- | --- | --- | --- | --- |"]
    for row in stored["rows"]:
        sentence = _short(str(row["sentence"])).replace("|", "\\|")
        lines.append(f"| {row['grant']} | {row['outcome']} | `{row['shown']}` | {sentence} | {row['on']} |")
    return "\n".join(lines)


def _short(sentence: str) -> str:
    """Without the middle, which repeats what an API answered."""
    return sentence if len(sentence) <= 2 * _SHOWN else f"{sentence[:_SHOWN]} … {sentence[-_SHOWN:]}"


def results() -> dict[str, Any]:
    """The proof's, as it was stored."""
    stored: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return stored


def every() -> dict[access.Grant, list[_Choice]]:
    """Every grant of any settings, with the settings."""
    found: dict[access.Grant, list[_Choice]] = {}
    for choice in _CHOICES:
        for one in _grants(_settings(choice)):
            found.setdefault(one, []).append(choice)
    return found


def _grants(settings: Settings) -> Iterator[access.Grant]:
    yield from access.grants(settings)
    yield from access.of_agents(settings)
    yield from access.of_people(settings, everybody=True)


def _row(one: access.Grant) -> str:
    role = (
        f"`{one.role}`" if one.role else "its own, of " + ", ".join(f"`{each}`" for each in one.permissions)
    )
    where = one.on if not one.what else f"{one.on} `{one.what}`"
    where += f", objects below `{one.folder}/`" if one.folder else ""
    return f"{one.who} | {role} | {where} | {one.why}"


def _only(choices: list[_Choice]) -> str:
    """The settings without which a grant isn't made."""
    found = []
    trainings = list(dict.fromkeys(one.train for one in choices))
    if len(trainings) < len(TRAININGS):
        found.append(f"`train: {' or '.join(trainings)}`")
    roles = {one.role for one in choices if not one.existing}
    if len(roles) == 1:
        found.append(f"`sparkRole: {roles.pop()}`")
    if {one.existing for one in choices} == {True} or len({one.role for one in choices}) > len(
        {one.role for one in choices if not one.existing}
    ):
        found.append("`existingRawBucket`")
    return f"; with {' or '.join(found)}" if found else ""


def _settings(choice: _Choice) -> Settings:
    gcp = GcpSettings(project="PROJECT")
    storage = StorageSettings(bucket_name="BUCKET", location="us-east5")
    pipeline = replace(
        PipelineSettings(raw_bucket_name="RAW"), train=choice.train, schedule="0 3 * * *",
        spark_role=choice.role, existing_raw_bucket=choice.existing,
    )  # fmt: skip
    return Settings("dev", {GcpSettings: gcp, StorageSettings: storage, PipelineSettings: pipeline})

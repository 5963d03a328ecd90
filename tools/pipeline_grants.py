"""Grants of the pipeline's accounts and the failures of runs without them, for docs/pipeline.md and
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
from views.table import markdown

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks/results/pipeline_grants.json"
"""Result of `python -m tests.proofs grants`."""
_SHOWN = 180


@dataclass(frozen=True)
class _Choice:
    """Settings that decide which grants there are."""

    train: str
    role: str
    existing: bool


_CHOICES = [_Choice(*item) for item in product(TRAININGS, (WORKER, SMALL_ROLE), (False, True))]


def table() -> str:
    """Return a row for each grant, with the settings that it is for where it isn't for all."""
    outcomes = {str(row["grant"]): row["outcome"] for row in results()["rows"]}
    rows = [
        (*_row(entry), f"{entry.why}{_only(choices)}", outcomes[entry.named])
        for entry, choices in every().items()
    ]
    return "\n".join(markdown(("account", "role", "on", "for", "without it"), rows))


def removed() -> str:
    """Return a row for each grant that was taken away, with the sentence that names it."""
    rows = [
        (row["grant"], row["outcome"], f"`{row['shown']}`", _short(str(row["sentence"])), row["on"])
        for row in results()["rows"]
    ]
    return "\n".join(markdown(("without", "comes", "shown by", "sentence", "on"), rows))


def _short(sentence: str) -> str:
    """Without the middle, which repeats what an API answered."""
    return sentence if len(sentence) <= 2 * _SHOWN else f"{sentence[:_SHOWN]} … {sentence[-_SHOWN:]}"


def results() -> dict[str, Any]:
    """Return the stored result of the proof."""
    stored: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return stored


def every() -> dict[access.Grant, list[_Choice]]:
    """Every grant of any settings, with the settings."""
    mapping: dict[access.Grant, list[_Choice]] = {}
    for choice in _CHOICES:
        for grant in _grants(_settings(choice)):
            mapping.setdefault(grant, []).append(choice)
    return mapping


def _grants(settings: Settings) -> Iterator[access.Grant]:
    yield from access.grants(settings)
    yield from access.of_agents(settings)
    yield from access.of_people(settings, everybody=True)


def _row(grant: access.Grant) -> tuple[str, str, str]:
    role = (
        f"`{grant.role}`"
        if grant.role
        else "its own, of " + ", ".join(f"`{permission}`" for permission in grant.permissions)
    )
    where = grant.on if not grant.what else f"{grant.on} `{grant.what}`"
    where += f", objects below `{grant.folder}/`" if grant.folder else ""
    return grant.who, role, where


def _only(choices: list[_Choice]) -> str:
    """Return the settings without which a grant isn't made."""
    result = []
    trainings = list(dict.fromkeys(choice.train for choice in choices))
    if len(trainings) < len(TRAININGS):
        result.append(f"`train: {' or '.join(trainings)}`")
    roles = {choice.role for choice in choices if not choice.existing}
    if len(roles) == 1:
        result.append(f"`sparkRole: {roles.pop()}`")
    if {choice.existing for choice in choices} == {True} or len({choice.role for choice in choices}) > len(
        {choice.role for choice in choices if not choice.existing}
    ):
        result.append("`existingRawBucket`")
    return f"; with {' or '.join(result)}" if result else ""


def _settings(choice: _Choice) -> Settings:
    gcp = GcpSettings(project="PROJECT")
    storage = StorageSettings(bucket_name="BUCKET", location="us-east5")
    pipeline = replace(
        PipelineSettings(raw_bucket_name="RAW"), train=choice.train, schedule="0 3 * * *",
        spark_role=choice.role, existing_raw_bucket=choice.existing,
    )  # fmt: skip
    return Settings("dev", {GcpSettings: gcp, StorageSettings: storage, PipelineSettings: pipeline})

"""Grants of the pipeline's accounts, and the failures of runs without them.

Blocks of docs/reference/pipeline.md and docs/internals/pipeline-grants.md.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

from infra.layers.pipeline import access
from infra.layers.pipeline.settings import SMALL_ROLE, TRAININGS, WORKER, PipelineSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import GcpSettings, Settings
from tools.blocks import ROOT
from tools.blocks import table as table_of

RESULTS = ROOT / "benchmarks/results/pipeline_grants.json"
"""Result of `python -m tests.proofs grants`."""
_SHOWN = 180
_Choice = tuple[str, str, bool]
"""Settings that decide which grants exist: `train`, `sparkRole`, `existingRawBucket`."""


def table() -> str:
    """Return a row for each grant, with the settings that it depends on."""
    outcomes = {str(row["grant"]): row["outcome"] for row in results()["rows"]}
    rows = []
    for grant, choices in every().items():
        permissions = ", ".join(f"`{permission}`" for permission in grant.permissions)
        role = f"`{grant.role}`" if grant.role else f"a custom role: {permissions}"
        where = f"{grant.on} `{grant.what}`" if grant.what else grant.on
        where += f", objects below `{grant.folder}/`" if grant.folder else ""
        where += ", in the bucket of the region's functions" if grant.sources else ""
        outcome = outcomes.get(grant.named, "not tried")
        rows.append((grant.who, role, where, grant.why, _only(choices), outcome))
    rows.sort(key=lambda row: row[0].casefold())
    return table_of(("account", "role", "on", "for", "only with", "without it"), rows)


def removed() -> str:
    """Return a row for each grant that was taken away, with the sentence that names it."""
    rows = []
    for row in results()["rows"]:
        sentence = str(row["sentence"])
        if len(sentence) > 2 * _SHOWN:  # the middle repeats an API's answer
            sentence = f"{sentence[:_SHOWN]} … {sentence[-_SHOWN:]}"
        rows.append((row["grant"], row["outcome"], f"`{row['shown']}`", sentence, row["on"]))
    return table_of(("without", "comes", "shown by", "sentence", "on"), rows)


def results() -> dict[str, Any]:
    """Return the stored result of the proof."""
    stored: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return stored


def every() -> dict[access.Grant, list[_Choice]]:
    """Return the grants of any settings, with the settings."""
    mapping: dict[access.Grant, list[_Choice]] = {}
    storage = StorageSettings(bucket_name="BUCKET", location="us-east5")
    for train, role, existing in product(TRAININGS, (WORKER, SMALL_ROLE), (False, True)):
        pipeline = replace(
            PipelineSettings(raw_bucket_name="RAW"), train=train, spark_role=role,
            existing_raw_bucket=existing,
        )  # fmt: skip
        sections = {GcpSettings: GcpSettings(project="PROJECT"), StorageSettings: storage}
        settings = Settings("dev", {**sections, PipelineSettings: pipeline})
        people = access.of_people(settings, everybody=True)
        for grant in (*access.grants(settings), *access.of_agents(settings), *people):
            mapping.setdefault(grant, []).append((train, role, existing))
    return mapping


def _only(choices: list[_Choice]) -> str:
    """Return the settings that a grant needs; empty for a grant that always exists."""
    needed = []
    trainings = list(dict.fromkeys(train for train, _, _ in choices))
    roles = {role for _, role, existing in choices if not existing}
    if len(trainings) < len(TRAININGS):
        needed.append(f"`train: {' or '.join(trainings)}`")
    if len(roles) == 1:
        needed.append(f"`sparkRole: {next(iter(roles))}`")
    if any(role not in roles for _, role, _ in choices):
        needed.append("`existingRawBucket`")
    return " or ".join(needed)

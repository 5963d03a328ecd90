"""Who of the pipeline may do what, as the table of docs/pipeline.md: every grant of any setting."""

from __future__ import annotations

from dataclasses import replace

from infra.pipeline import access
from infra.pipeline.settings import TRAININGS, PipelineSettings
from infra.settings import Settings
from infra.settings.schema import GcpSettings
from infra.storage.settings import StorageSettings


def table() -> str:
    """A row for each grant, with the training that it is for where it isn't for all."""
    lines = ["| account | role | on | for |", "| --- | --- | --- | --- |"]
    always = {_row(one) for one in access.grants(_settings("none"))}
    shown: dict[str, list[str]] = {}
    for train in TRAININGS:
        for one in access.grants(_settings(train)):
            shown.setdefault(_row(one), []).append(train)
    for row, trainings in shown.items():
        only = "" if row in always else f"; with `train: {' or '.join(trainings)}`"
        lines.append(f"| {row}{only} |")
    return "\n".join(lines)


def _row(one: access.Grant) -> str:
    role = (
        f"`{one.role}`" if one.role else "its own, of " + ", ".join(f"`{each}`" for each in one.permissions)
    )
    where = one.on if not one.what else f"{one.on} `{one.what}`"
    if one.only:
        where += f", objects below `{one.only.rpartition('/objects/')[2].partition('/')[0]}/`"
    return f"{one.who} | {role} | {where} | {one.why}"


def _settings(train: str) -> Settings:
    gcp = GcpSettings(project="PROJECT")
    storage = StorageSettings(bucket_name="BUCKET", location="us-east5")
    pipeline = replace(PipelineSettings(raw_bucket_name="RAW"), train=train, schedule="0 3 * * *")
    return Settings("dev", {GcpSettings: gcp, StorageSettings: storage, PipelineSettings: pipeline})

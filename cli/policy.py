"""`tpu policy`: check stored state, or a preview, against the rules of docs/reference/policy.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import starmap
from pathlib import Path
from typing import Any

import click

from cli import options
from cli.command import Command
from infra.core.environment import layers_on, require_on
from infra.engine import plan
from infra.engine import updates as stacks
from infra.engine.pulumi import Pulumi
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.policy import RULES, Finding, Resource, findings, refuse_wrong_settings
from infra.policy.terraform import document
from infra.settings.schema import Settings
from views.counts import counted


@click.command(cls=Command, examples=["prod", "prod --terraform plan.json"])
@options.environment
@options.layers
@click.option("--preview", is_flag=True, help="Check the result of a preview instead of the stored state.")
@click.option(
    "--terraform", metavar="FILE", type=options.PATH,
    help="Check nothing; write the resources as a Terraform plan (JSON) for other auditors.",
)  # fmt: skip
@options.as_json
@click.pass_obj
def policy(
    root: Path, environment: str, layers: Sequence[str], preview: bool, terraform: Path | None, as_json: bool
) -> int:
    """Check the stored state of each layer; 1 if a mandatory rule is broken without an exception."""
    settings = from_file(environment, root)
    refuse_wrong_settings(RULES, settings, datetime.now(tz=UTC).date())
    resources = _resources(settings, layers, preview, root)
    if terraform:
        return _write(terraform, resources)
    result = [
        (layer, finding) for layer, items in resources.items() for finding in findings(RULES, items, settings)
    ]
    broken = [(layer, finding) for layer, finding in result if finding.exception is None]
    counts = {layer: len(items) for layer, items in resources.items()}
    if as_json:
        report = {"rules": len(RULES), "resources": counts, "findings": [*starmap(_plain, result)]}
        print(json.dumps(report))
    else:
        for layer, finding in broken:
            print(f"{layer}: {finding.problem}")
        for layer, finding in result:
            if finding.exception:
                print(f"{layer}: {finding.resource.name}, {finding.rule.id}: allowed until "
                      f"{finding.exception.until}: {finding.exception.reason}")  # fmt: skip
        checked = ", ".join(f"{count} of {layer}" for layer, count in counts.items())
        total = f"{counted(sum(counts.values()), 'resource')} ({checked})"
        print(f"{len(RULES)} rules, {total}, {counted(len(broken), 'finding')}")
    return 1 if any(finding.mandatory(settings) for _, finding in broken) else 0


def _resources(
    settings: Settings, layers: Sequence[str], preview: bool, root: Path
) -> dict[str, list[Resource]]:
    """Return the resources of layers, without names of all that are on. Raises CommandError for none."""
    environment = settings.environment
    on = [layer.name for layer in layers_on(settings)]
    selected = stacks.in_order(layers)
    require_on(settings, sorted(selected))
    if preview:
        states = plan.foreseen(environment, root, selected)
    else:
        pulumi = Pulumi(environment, root)
        states = {layer: _stored(pulumi.export(layer)) for layer in selected or on}
    resources = {layer: [*map(Resource.of_state, states[layer])] for layer in selected or on}
    if not any(resources.values()):  # without resources, as with a wrong backend, no finding proves nothing
        raise CommandError(
            f"nothing is up of {', '.join(resources)} in {environment}, so nothing was checked\n"
            f"    fix: tpu policy {environment} --preview, which checks the result of an update; or pulumi "
            "login to the backend of the state"
        )
    return resources


def _write(path: Path, resources: Mapping[str, Sequence[Resource]]) -> int:
    written = document(resources)
    path.write_text(f"{json.dumps(written, indent=1)}\n", encoding="utf-8")
    number, total = len(written["resource_changes"]), sum(map(len, resources.values()))
    print(f"{path}: {number} resources of Google's, of {total}")
    print(f"next: checkov -f {path} --framework terraform_plan --skip-download")
    return 0


def _stored(state: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    resources = (state or {"deployment": {}})["deployment"].get("resources") or ()
    return [resource for resource in resources if not resource.get("delete")]


def _plain(layer: str, finding: Finding) -> dict[str, Any]:
    return {
        "layer": layer, "rule": finding.rule.id, "type": finding.resource.type,
        "resource": finding.resource.name, "found": finding.value,
        "exception": finding.exception.reason if finding.exception else None,
    }  # fmt: skip

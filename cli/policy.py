"""`tpu policy`: what of an environment's stored state, or of its preview, breaks a rule of docs/policy.md."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.core import layer as core_layer
from infra.core.environment import layers_on
from infra.engine import plan
from infra.engine import updates as stacks
from infra.engine.pulumi import Pulumi
from infra.engine.settings import from_file
from infra.errors import CommandError
from infra.policy import RULES, Finding, Resource, findings, refuse_wrong_settings, terraform
from infra.settings.schema import PolicySettings
from infra.settings.sources import ROOT


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Check what is stored of each layer; 1 where a rule is broken that is mandatory and has no exception."""
    options = _parser().parse_args(arguments)
    settings = from_file(options.environment, root)
    refuse_wrong_settings(RULES, settings, datetime.now(tz=UTC).date())
    on = [layer.name for layer in layers_on(settings)]
    asked = stacks.in_order(options.layers)
    if unknown := sorted(set(asked) - set(on)):
        raise CommandError(core_layer.off(unknown[0], options.environment))
    if options.preview:
        states = plan.foreseen(options.environment, root, asked)
    else:
        pulumi = Pulumi(options.environment, root)
        states = {layer: _stored(pulumi.export(layer)) for layer in asked or on}
    resources = {layer: [*map(Resource.of_state, states[layer])] for layer in asked or on}
    if not any(resources.values()):  # of a wrong backend, say: no finding would mean nothing
        environment = options.environment
        raise CommandError(
            f"nothing is up of {', '.join(resources)} in {environment}, so nothing was checked\n"
            f"    fix: tpu policy {environment} --preview, which checks what an update would make; or pulumi "
            "login to where the state is"
        )
    if options.terraform:
        return _write(options.terraform, resources)
    counts = {layer: len(each) for layer, each in resources.items()}
    found: list[tuple[str, Finding]] = []
    for layer, each in resources.items():
        found += [(layer, one) for one in findings(RULES, each, settings)]
    broken = [(layer, one) for layer, one in found if one.exception is None]
    if options.json:
        print(json.dumps({"rules": len(RULES), "resources": counts, "findings": [*map(_plain, found)]}))
    else:
        for layer, one in broken:
            print(f"{layer}: {one.problem}")
        for layer, one in found:
            if one.exception:
                print(f"{layer}: {one.resource.name}, {one.rule.id}: allowed until {one.exception.until}: "
                      f"{one.exception.reason}")  # fmt: skip
        checked = ", ".join(f"{count} of {layer}" for layer, count in counts.items())
        print(f"{len(RULES)} rules, {sum(counts.values())} resources ({checked}), {len(broken)} findings")
    return 1 if broken and settings[PolicySettings].mandatory else 0


def _write(path: Path, resources: Mapping[str, Sequence[Resource]]) -> int:
    written = terraform.document(resources)
    path.write_text(f"{json.dumps(written, indent=1)}\n", encoding="utf-8")
    number, all_of_them = len(written["resource_changes"]), sum(map(len, resources.values()))
    print(f"{path}: {number} resources of Google's, of {all_of_them}")
    print(f"next: checkov -f {path} --framework terraform_plan --skip-download")
    return 0


def _stored(state: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    resources = (state or {"deployment": {}})["deployment"].get("resources") or ()
    return [one for one in resources if not one.get("delete")]


def _plain(found: tuple[str, Finding]) -> dict[str, Any]:
    layer, one = found
    return {
        "layer": layer, "rule": one.rule.id, "type": one.resource.type, "resource": one.resource.name,
        "found": one.found, "exception": one.exception.reason if one.exception else None,
    }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tpu policy", description="What of the stored state breaks a rule (docs/policy.md).",
        epilog="example: tpu policy prod",
    )  # fmt: skip
    parser.add_argument("environment", metavar="ENV", help="dev, prod, …: the settings in Pulumi.ENV.yaml")
    parser.add_argument("layers", metavar="LAYER", nargs="*", help="these alone")
    parser.add_argument(
        "--preview", action="store_true", help="what a preview foresees, instead of what is stored"
    )
    parser.add_argument(
        "--terraform", metavar="FILE", type=Path,
        help="check nothing, but write the resources as a Terraform plan (JSON), which other auditors read",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="as one JSON document")
    return parser

"""`tpu policy`: what of an environment's stored state breaks a rule of docs/policy.md."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra import layers, stacks
from infra.cli import Pulumi
from infra.errors import CommandError
from infra.policy import RULES, Finding, Resource, findings, refuse_wrong_exceptions
from infra.settings import from_file
from infra.settings.schema import PolicySettings
from infra.settings.sources import ROOT


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Check what is stored of each layer; 1 where a rule is broken that is mandatory and has no exception."""
    options = _parser().parse_args(arguments)
    settings = from_file(options.environment, root)
    refuse_wrong_exceptions(RULES, settings, datetime.now(tz=UTC).date())
    on = [layer.name for layer in layers.on(settings)]
    asked = stacks.in_order(options.layers)
    if unknown := sorted(set(asked) - set(on)):
        raise CommandError(layers.off(unknown[0], options.environment))
    pulumi = Pulumi(options.environment, root)
    counts: dict[str, int] = {}
    found: list[tuple[str, Finding]] = []
    for layer in asked or on:
        stored = [*_stored(pulumi.export(layer))]
        counts[layer] = len(stored)
        found += [(layer, one) for one in findings(RULES, stored, settings)]
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


def _stored(state: Mapping[str, Any] | None) -> Iterator[Resource]:
    for one in (state or {"deployment": {}})["deployment"].get("resources") or ():
        if not one.get("delete"):
            name = one["urn"].rpartition("::")[2]
            protect, retained = bool(one.get("protect")), bool(one.get("retainOnDelete"))
            yield Resource(one["type"], name, one.get("inputs") or {}, protect, retained)


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
    parser.add_argument("--json", action="store_true", help="as one JSON document")
    return parser

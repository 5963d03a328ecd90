"""Obstacles to a destroy, all found before anything is deleted: protection, and living members, jobs or runs.

`pulumi destroy` itself stops at the first (infra/core/guard.py), in the middle of a stack.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.core import guard
from infra.core.layer import directory, up_command
from infra.engine.pulumi import Pulumi
from infra.errors import CommandError, Problem, listed
from infra.settings.schema import UNPROTECTED
from infra.settings.sources import ROOT, path_of

_SHOWN = 3
_DYNAMIC = "pulumi-python:dynamic:Resource"  # guards, and others


def refuse(
    environment: str, layers: Sequence[str], root: Path = ROOT
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return what these layers' stacks hold. Raises CommandError with all obstacles to destroying them."""
    path_of(environment, root)
    pulumi = Pulumi(environment, root)
    pulumi.require_passphrase()
    held = {layer: pulumi.state(layer) for layer in layers}
    problems = [problem for layer in layers for problem in against(environment, layer, held[layer])]
    problems += in_use(held)
    if problems:
        raise CommandError(listed(f"a destroy of {', '.join(layers)} in {environment}", [*problems]))
    return held


def against(environment: str, layer: str, resources: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield what is protected among the resources of one layer's state."""
    # What a stack only reads, a destroy leaves as it is.
    resources = [resource for resource in resources if not resource.get("external")]
    protected = [resource for resource in resources if resource.get("protect")]
    if protected:
        names = [str(resource["urn"]).rpartition("::")[2] for resource in protected]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else "")
        where = directory(layer)
        place = "" if where == "." else f"-C {where} "
        unprotect = f"pulumi {place}state unprotect -s {environment} '{protected[0]['urn']}'"
        fix = f"leave it up, or, of each that may be lost: {unprotect}"
        yield Problem(layer, f"protected: {shown}", "what is protected is never destroyed", fix)
    for resource in resources:
        if (resource.get("inputs") or {}).get("deletionProtection") is True:
            declared = str(resource["urn"]).rpartition("::")[2]
            name = resource["inputs"].get("name", declared)
            rule = "Google deletes nothing that has deletion protection"
            excepted = f'{{rule: K09, resource: {declared}, reason: TEXT, until: "YYYY-MM-DD"}}'
            excepts = layer == "gke" and environment != UNPROTECTED
            beside = f" and an item {excepted} in policy:exceptions" if excepts else ""
            up = f"{up_command(layer, environment)} (or the build)"
            fix = f"{layer}:deletionProtection: false{beside}, then {up}"
            yield Problem(layer, f"deletion protection of {name}", rule, fix)


def in_use(states: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Problem]:
    """Yield what lives on layers, by their states: once, since layers that lie upon one another share it."""
    living: dict[tuple[tuple[str, str], str], tuple[list[str], set[str]]] = {}
    unknown: dict[str, list[str]] = {}
    for layer, error in _guarded(states):
        if isinstance(error, guard.InUseError):
            layers, names = living.setdefault((error.noun, error.fix), ([], set()))
            names.update(error.names)
        else:
            layers = unknown.setdefault(str(error), [])
        layers.append(layer)
    merged = [
        (layers, str(guard.InUseError(sorted(names), noun, fix)))
        for (noun, fix), (layers, names) in living.items()
    ]
    for layers, message in (*merged, *((layers, message) for message, layers in unknown.items())):
        what, _, fix = message.partition("\n    fix: ")
        yield Problem(", ".join(dict.fromkeys(layers)), what, "a layer in use isn't destroyed", fix)


def _guarded(
    states: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[str, guard.LivingError]]:
    for layer, resource in ((layer, item) for layer, items in states.items() for item in items):
        held = resource.get("outputs") or {}
        guards = resource.get("type") == _DYNAMIC and held.get("what") in guard.KINDS
        if guards and not resource.get("external"):
            try:
                guard.refuse(
                    held["what"], held["project"], held["environment"], held["labels"],
                    held.get("namespace", ""),
                )  # fmt: skip
            except guard.LivingError as error:
                yield layer, error

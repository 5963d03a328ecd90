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
    # Layers that lie upon one another have obstacles in common.
    problems = dict.fromkeys(
        problem for layer in layers for problem in against(environment, layer, held[layer])
    )
    if problems:
        raise CommandError(listed(f"a destroy of {', '.join(layers)} in {environment}", [*problems]))
    return held


def against(environment: str, layer: str, resources: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield the obstacles among the resources of one layer's state."""
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
        held = resource.get("outputs") or {}
        if resource.get("type") == _DYNAMIC and held.get("what") in guard.KINDS:
            try:
                guard.refuse(
                    held["what"], held["project"], held["environment"], held["labels"],
                    held.get("namespace", ""),
                )  # fmt: skip
            except guard.LivingError as error:
                what, _, fix = str(error).partition("\n    fix: ")
                yield Problem(str(held["what"]), what, "nothing is taken from under what lives", fix)

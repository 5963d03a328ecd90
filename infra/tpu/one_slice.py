"""Rules between the settings of one slice."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from infra.catalog import CATALOG, chips_of
from infra.errors import Problem
from infra.settings import commands
from infra.tpu.settings import SliceSettings


def checked(
    path: str, one: SliceSettings, raw: dict[str, Any], broken: set[str]
) -> tuple[SliceSettings, list[Problem]]:
    """A slice with a name and a size, so that rules between slices can read it; and what is wrong with it."""
    problems = list(_within(path, one, raw, broken))
    broken.update(problem.path for problem in problems if problem.path != path)
    if not (CATALOG.by_name(one.accelerator_type or "") or CATALOG.by_topology(one.topology or "")):
        broken.add(f"{path}.acceleratorType")
        one = replace(one, accelerator_type=CATALOG.types[0].name)
    return replace(one, name=one.name or path), problems


def _within(path: str, one: SliceSettings, raw: dict[str, Any], broken: set[str]) -> Iterator[Problem]:
    """What is wrong between the fields of one slice."""

    def fine(*keys: str) -> bool:
        return not any(
            bad == f"{path}.{key}" or bad.startswith(f"{path}.{key}[") for bad in broken for key in keys
        )

    if fine("topology"):
        yield from _size(path, one, type_known=fine("acceleratorType"))
    if fine("zones") and not one.zones and "zones" in raw:
        yield Problem(f"{path}.zones", "[]", "a slice is in a zone", "add one: [us-east5-b]")
    if fine("zones", "count") and one.count is None and len(one.zones) > 1:
        yield Problem(
            f"{path}.zones",
            f"{len(one.zones)} zones",
            "one slice is in one zone; a fleet is spread over several",
            "keep one zone, or add count",
        )
    if one.spot and one.reserved:
        yield Problem(
            f"{path}.reserved",
            "true beside spot: true",
            "a slice is spot, reserved or neither (on demand)",
            "remove one of the two",
        )
    if fine("count") and one.count is None and one.first_worker_id:
        yield Problem(
            f"{path}.firstWorkerId",
            str(one.first_worker_id),
            "only members of a fleet have worker ids",
            "remove it, or set count",
        )
    if fine("count") and one.count is None and one.fallback_zones:
        yield Problem(
            f"{path}.fallbackZones",
            f"{len(one.fallback_zones)} zones",
            "only members of a fleet are made elsewhere; Pulumi makes a named slice, where it is named",
            "remove it, or set count",
        )
    if fine("zones", "fallbackZones"):
        yield from _fallback_zones(path, one)
    if one.multislice and fine("count", "zones"):
        yield from _together(path, one)
    try:
        commands.training(one.run or "")
    except ValueError as error:
        yield Problem(f"{path}.run", f'"{one.run}"', str(error), "write e.g. train tiny.toml --name first")


def _size(path: str, one: SliceSettings, type_known: bool) -> Iterator[Problem]:
    kind = CATALOG.by_name(one.accelerator_type) if one.accelerator_type else None
    if kind is None and one.topology is None and type_known:
        yield Problem(
            path,
            "neither acceleratorType nor topology",
            "a slice has a size",
            "add acceleratorType: v6e-16 (or topology: 4x4)",
        )
    if one.topology is None:
        return
    same = CATALOG.by_topology(one.topology)
    chips = chips_of(one.topology)
    if kind is not None and one.topology != kind.topology:
        what = f"{one.topology} is {chips} chips" + (f", a {same.name}" if same else "")
        other = f", or acceleratorType: {same.name}" if same else ""
        yield Problem(
            f"{path}.topology",
            f'"{one.topology}"',
            f"{kind.name} is {kind.topology} ({kind.chips} chips); {what}",
            f"write topology: {kind.topology}{other}",
        )
    elif same is None:
        known = ", ".join(known.topology for known in CATALOG.types)
        turned = CATALOG.by_topology("x".join(reversed(one.topology.split("x"))))
        yield Problem(
            f"{path}.topology",
            f'"{one.topology}"',
            f"v6e comes as {known} (a pod has {CATALOG.pod_chips} chips)",
            f"write topology: {turned.topology}" if turned else "write one of these",
        )


def _fallback_zones(path: str, one: SliceSettings) -> Iterator[Problem]:
    if len(one.zones) == 1 and one.zones[0] in one.fallback_zones:
        yield Problem(
            f"{path}.fallbackZones",
            f'"{one.zones[0]}"',
            "zones besides the slices' only one",
            "write another zone, or remove it",
        )
    if one.fallback_zones and one.multislice:
        yield Problem(
            f"{path}.fallbackZones",
            f"{len(one.fallback_zones)} beside multislice: true",
            "the slices of one job talk at every step, so they are in one zone",
            "remove one of the two",
        )
    if one.fallback_zones and one.reserved:
        yield Problem(
            f"{path}.fallbackZones",
            f"{len(one.fallback_zones)} beside reserved: true",
            "a reservation is of one zone",
            "remove one of the two",
        )


def _together(path: str, one: SliceSettings) -> Iterator[Problem]:
    if (one.count or 1) < 2:
        yield Problem(
            f"{path}.multislice",
            "true without a fleet",
            "several slices run one job together",
            "add count: 2 or more, or remove it",
        )
    if len(one.zones) > 1:
        yield Problem(
            f"{path}.zones",
            f"{len(one.zones)} zones",
            "the slices of one job talk at every step, so they are in one zone",
            "keep one zone, or remove multislice",
        )

"""Rules between the settings of one slice."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from infra.catalog import CATALOG
from infra.errors import Problem
from infra.settings import commands
from infra.slices import sizes
from infra.slices.settings import SliceSettings


def checked(
    path: str, slice_: SliceSettings, raw: dict[str, Any], broken: set[str]
) -> tuple[SliceSettings, list[Problem]]:
    """Check a slice; return it with a name and a size, for rules between slices, and its problems."""
    problems = list(_within(path, slice_, broken))
    broken.update(problem.path for problem in problems if problem.path != path)
    if sizes.kind_of(slice_.accelerator_type, slice_.topology) is None:
        broken.add(f"{path}.acceleratorType")
        slice_ = replace(slice_, accelerator_type=CATALOG.types[0].name)
    return replace(slice_, name=slice_.name or path), problems


def _within(path: str, slice_: SliceSettings, broken: set[str]) -> Iterator[Problem]:
    """Yield problems between the fields of one slice."""

    def fine(*keys: str) -> bool:
        return not any(
            bad == f"{path}.{key}" or bad.startswith(f"{path}.{key}[") for bad in broken for key in keys
        )

    if fine("topology"):
        yield from sizes.problems(
            path, slice_.accelerator_type, slice_.topology, type_known=fine("acceleratorType")
        )
    if fine("zones", "count") and slice_.count is None and len(slice_.zones) > 1:
        yield Problem(
            f"{path}.zones",
            f"{len(slice_.zones)} zones",
            "one slice is in one zone; a fleet is spread over several",
            "keep one zone, or add count",
        )
    if slice_.spot and slice_.reserved:
        yield Problem(
            f"{path}.reserved",
            "true beside spot: true",
            "a slice is spot, reserved or neither (on demand)",
            "remove one of the two",
        )
    if fine("count") and slice_.count is None and slice_.first_worker_id:
        yield Problem(
            f"{path}.firstWorkerId",
            str(slice_.first_worker_id),
            "only members of a fleet have worker ids",
            "remove it, or set count",
        )
    if fine("count") and slice_.count is None and slice_.fallback_zones:
        yield Problem(
            f"{path}.fallbackZones",
            f"{len(slice_.fallback_zones)} zones",
            "only members of a fleet are made elsewhere; Pulumi makes a named slice, where it is named",
            "remove it, or set count",
        )
    if fine("zones", "fallbackZones"):
        yield from _fallback_zones(path, slice_)
    if slice_.multislice and fine("count", "zones"):
        yield from _together(path, slice_)
    yield from commands.wrong_options(f"{path}.run", slice_.run or "")
    yield from slice_.variables.problems(f"{path}.env", f"{path}.secrets")
    if (slice_.env or slice_.secrets) and fine("run") and not slice_.run:
        yield Problem(f"{path}.run", "nothing beside env or secrets", "they are a program's", "add run")
    if slice_.image and fine("run", "image"):
        yield from _in_container(f"{path}.run", slice_.run or "")


def _in_container(path: str, run: str) -> Iterator[Problem]:
    program = (commands.split(run) or [""])[0]
    if not run:
        yield Problem(path, "nothing beside image", "it starts in the container", "add run")
    elif program in (*commands.COMMANDS, commands.HOST_COMMAND):
        rule = "commands of the workload start on the host, with its packages"
        yield Problem(path, f'"{run}" beside image', rule, "remove image, or start a program of the image's")


def _fallback_zones(path: str, slice_: SliceSettings) -> Iterator[Problem]:
    if len(slice_.zones) == 1 and slice_.zones[0] in slice_.fallback_zones:
        yield Problem(
            f"{path}.fallbackZones",
            f'"{slice_.zones[0]}"',
            "zones besides the slices' only one",
            "write another zone, or remove it",
        )
    if slice_.fallback_zones and slice_.multislice:
        yield Problem(
            f"{path}.fallbackZones",
            f"{len(slice_.fallback_zones)} beside multislice: true",
            "the slices of one job talk at every step, so they are in one zone",
            "remove one of the two",
        )
    if slice_.fallback_zones and slice_.reserved:
        yield Problem(
            f"{path}.fallbackZones",
            f"{len(slice_.fallback_zones)} beside reserved: true",
            "a reservation is of one zone",
            "remove one of the two",
        )


def _together(path: str, slice_: SliceSettings) -> Iterator[Problem]:
    if (slice_.count or 1) < 2:
        yield Problem(
            f"{path}.multislice",
            "true without a fleet",
            "several slices run one job together",
            "add count: 2 or more, or remove it",
        )
    if len(slice_.zones) > 1:
        yield Problem(
            f"{path}.zones",
            f"{len(slice_.zones)} zones",
            "the slices of one job talk at every step, so they are in one zone",
            "keep one zone, or remove multislice",
        )

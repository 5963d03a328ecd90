"""Members of a fleet, by the environment's file and a user's flags."""

from collections.abc import Collection

from fleet.errors import FleetError
from infra.settings.schema import Settings
from infra.slices.nodes import Node, nodes


def members(
    settings: Settings,
    slices: Collection[str] = (),
    zones: Collection[str] = (),
    workers_per_zone: int | None = None,
) -> tuple[Node, ...]:
    """Return the nodes of a command: all that the file lists, unless narrowed.

    Args:
        settings: of the environment.
        slices: only these items of `tpu:slices`, by name.
        zones: only those at home in these.
        workers_per_zone: only as many of the first in each zone.

    Raises:
        FleetError: a name or zone that the file doesn't have, or fewer nodes in a zone than were asked for.
    """
    everyone = nodes(settings)
    file = f"Pulumi.{settings.environment}.yaml"
    problems = [
        f"{flag} {value}: {file} has none; it has {', '.join(sorted(known)) or 'no slices'}"
        for flag, values, known in (
            ("--slice", slices, {item.slice for item in everyone}),
            ("--zones", zones, {item.home for item in everyone}),
        )
        for value in values
        if value not in known
    ]
    if problems:
        fix = f"mend the flag, or tpu:slices in {file}: the file says what there is"
        raise FleetError("\n".join([*problems, f"    fix: {fix}"]))
    target = [
        item
        for item in everyone
        if (not slices or item.slice in slices) and (not zones or item.home in zones)
    ]
    if workers_per_zone is None:
        return tuple(target)
    several = []
    for zone in dict.fromkeys(item.home for item in target):
        items = [item for item in target if item.home == zone]
        if len(items) < workers_per_zone:
            result = f"{file} has {len(items)} in {zone}"
            fix = f"count of tpu:slices in {file}: a fleet's members are spread over its zones in turn"
            raise FleetError(f"--workers-per-zone {workers_per_zone}: {result}\n    fix: {fix}")
        several += items[:workers_per_zone]
    return tuple(several)

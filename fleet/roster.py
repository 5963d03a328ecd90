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
            ("--slice", slices, {one.slice for one in everyone}),
            ("--zones", zones, {one.home for one in everyone}),
        )
        for value in values
        if value not in known
    ]
    if problems:
        fix = f"mend the flag, or tpu:slices in {file}: the file says what there is"
        raise FleetError("\n".join([*problems, f"    fix: {fix}"]))
    target = [
        one for one in everyone if (not slices or one.slice in slices) and (not zones or one.home in zones)
    ]
    if workers_per_zone is None:
        return tuple(target)
    some = []
    for zone in dict.fromkeys(one.home for one in target):
        there = [one for one in target if one.home == zone]
        if len(there) < workers_per_zone:
            found = f"{file} has {len(there)} in {zone}"
            fix = f"count of tpu:slices in {file}: a fleet's members are spread over its zones in turn"
            raise FleetError(f"--workers-per-zone {workers_per_zone}: {found}\n    fix: {fix}")
        some += there[:workers_per_zone]
    return tuple(some)

"""Who belongs to a fleet, by the environment's file and a person's flags; and what it costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fleet.errors import FleetError
from infra import prices
from infra.catalog import CATALOG
from infra.nodes import Node, nodes
from infra.settings import Settings


@dataclass(frozen=True)
class Wish:
    """Which members a command is about; all that the file lists, unless narrowed.

    Attributes:
        slices: items of `tpu:slices`, by name.
        zones: only those at home in these.
        workers_per_zone: only as many of the first in each zone; None for all.
    """

    slices: Sequence[str] = field(default=())
    zones: Sequence[str] = field(default=())
    workers_per_zone: int | None = None


def members(settings: Settings, wish: Wish = Wish()) -> tuple[Node, ...]:
    """The nodes that are meant.

    Raises:
        FleetError: a name or zone that the file doesn't have, or fewer nodes in a zone than were asked for.
    """
    everyone = nodes(settings)
    file = f"Pulumi.{settings.environment}.yaml"
    problems = [
        f"{flag} {value}: {file} has none; it has {', '.join(sorted(known)) or 'no slices'}"
        for flag, values, known in (
            ("--slice", wish.slices, {one.slice for one in everyone}),
            ("--zones", wish.zones, {one.home for one in everyone}),
        )
        for value in values
        if value not in known
    ]
    if problems:
        fix = f"mend the flag, or tpu:slices in {file}: the file says what there is"
        raise FleetError("\n".join([*problems, f"    fix: {fix}"]))
    meant = [
        one
        for one in everyone
        if (not wish.slices or one.slice in wish.slices) and (not wish.zones or one.home in wish.zones)
    ]
    if wish.workers_per_zone is None:
        return tuple(meant)
    some = []
    for zone in dict.fromkeys(one.home for one in meant):
        there = [one for one in meant if one.home == zone]
        if len(there) < wish.workers_per_zone:
            found = f"{file} has {len(there)} in {zone}"
            fix = f"count of tpu:slices in {file}: a fleet is dealt out over its zones in turn"
            raise FleetError(f"--workers-per-zone {wish.workers_per_zone}: {found}\n    fix: {fix}")
        some += there[: wish.workers_per_zone]
    return tuple(some)


def within_budget(settings: Settings) -> float | None:
    """What all slices cost an hour by the catalog, wherever they are moved; None where a price isn't known.

    Raises:
        FleetError: more than `fleet:dollarsPerHour`, which then can't be held against prices nobody knows.
    """
    rows = prices.rows([_dearest(one) for one in nodes(settings)])
    hourly = [row.hourly for row in rows]
    if settings.fleet.dollars_per_hour is not None and None in hourly:
        unknown = ", ".join(sorted({f"{row.slice} in {row.zone}" for row in rows if row.hourly is None}))
        fix = "take fleet:dollarsPerHour out, or these slices"
        raise FleetError(f"nobody knows the price of {unknown}: no budget can hold it\n    fix: {fix}")
    known = sum(price for price in hourly if price is not None)
    most = settings.fleet.dollars_per_hour
    if most is not None and known > most:
        fix = "fewer slices, or a larger fleet:dollarsPerHour"
        raise FleetError(f"${known:,.2f} an hour, fleet:dollarsPerHour allows ${most:,}\n    fix: {fix}")
    return None if None in hourly else known


def _dearest(node: Node) -> Node:
    """A node in that of its zones where it costs most; one of unknown price, if there is any."""

    def price(zone: str) -> float:
        each = CATALOG.price(zone)
        dollars = each.spot if node.spot else each.on_demand
        return math.inf if dollars is None else dollars

    return replace(node, zone=max(node.places, key=price))

"""A thousand slices in eight zones: made from nothing, kept for a week of preemptions; and `fleet status`.

What happens is drawn from a seed before anything runs; the controller is killed in the middle of its requests
as often as `KILLS` says, and another continues.
"""

import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import week
from benchmarks.emulated import Emulated
from benchmarks.machine import described
from benchmarks.status import measure as measure_status
from benchmarks.virtual import HOUR_S, Climate, Weather
from infra.catalog import CATALOG
from infra.slices.names import fleet_member
from infra.slices.nodes import Node

SLICES, ZONES, DAY_S, SEED, KILLS = 1000, 8, 24 * HOUR_S, 20261121, 200
LOOKS = ("tpu.projects.locations.nodes.list", "storage.objects.list")


def measure(rounds: int, days: float) -> dict[str, Any]:
    """Creation, and so many days over the emulated API; and `fleet status`."""
    members = fleet()
    return {
        **over_api(members, days, round(KILLS * days / 7)),
        "status": measure_status(members, rounds),
        "what": f"{SLICES} slices in {ZONES} zones, {days:g} virtual days, seed {SEED}",
        "climate": Climate().__dict__,
        "on": described(["requests", "aiohttp"]),
    }


def over_api(members: list[Node], days: float, kills: int) -> dict[str, Any]:
    """Creation from nothing, and what came after it; seconds of this machine beside those of the clock."""
    climate = Climate()
    zones = {member.zone for member in members}
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        Emulated(Path(folder), zones, week.durations(climate)) as cloud,
    ):
        weather = Weather({one.key: one.zone for one in members}, climate, days * DAY_S, SEED)
        span = week.Week(cloud, members, weather, days * DAY_S, kills)
        begun = time.monotonic()
        created_s = span.create_all()
        created = {"virtual_s": created_s, "took_s": round(time.monotonic() - begun, 1)}
        print(f"created: {created}", file=sys.stderr, flush=True)
        begun = time.monotonic()
        span.live()
        reported = span.told()
    recoveries_s, over_s = reported.pop("recoveries_s"), reported.pop("over_s")
    looks = sum(reported["methods"].get(name, 0) for name in LOOKS)
    others = sum(count for name, count in reported["methods"].items() if name not in LOOKS)
    return {
        "creation": created,
        "week": reported
        | {
            "days": days,
            "took_s": round(time.monotonic() - begun, 1),
            "recovered": len(recoveries_s),
            "recovery_s": _recoveries(recoveries_s),
            "over_google_s": _recoveries(over_s),
            "looks": looks,
            "requests_a_recovery": others / len(recoveries_s),
            "members": len(members),
        },
    }


def _recoveries(seconds: list[float]) -> dict[str, float]:
    return {"median": median(seconds), "p95": quantiles(seconds, n=20)[-1], "longest": max(seconds)}


def fleet(count: int = SLICES) -> list[Node]:
    """Preemptible slices of v6e-8, dealt out over the zones; each may move to any of them."""
    kind = CATALOG.by_name("v6e-8")
    assert kind is not None
    zones = CATALOG.zones[:ZONES]
    assert len(zones) == ZONES, "the catalog lists fewer zones"
    return [
        Node(
            slice="extract", name=fleet_member(zone, n // ZONES), zone=zone, home=zone, kind=kind,
            spot=True, reserved=False, runtime_version="v2-alpha-tpuv6e", run="extract", labels={}, member=n,
            others=tuple(other for other in zones if other != zone),
        )
        for n, zone in zip(range(count), cycle(zones), strict=False)
    ]  # fmt: skip

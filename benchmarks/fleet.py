"""A thousand slices in eight zones for a week of preemptions, by ours and by a serial loop; and a status.

Both meet the same losses, stock-outs and ill zones, drawn from one seed before anything runs. The
loop is what shared scripts for such fleets do, kathir-ks/activation-extract's deploy_to_tpus.sh among
them: one node after another is described, what isn't READY is deleted and created until that succeeds, and
an error of any kind counts as "not found". That a node exists ends its attempts here, though
not there: else it would hang on the first healthy node that it took for missing.
"""

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from fleet.loop import Keeper
from fleet.virtual import HOUR_S, Climate, Notebook, VirtualCloud, Weather

from benchmarks import week
from benchmarks.emulated import Emulated
from benchmarks.machine import described
from benchmarks.status import measure as measure_status
from benchmarks.week import DESCRIBE_S, LOOK_EVERY_S, PAUSE_S, RETRY_S
from fleet.decide import Limits
from infra import names
from infra.catalog import CATALOG
from infra.nodes import Node

SLICES, ZONES, WEEK_S, SEED = 1000, 8, 7 * 24 * HOUR_S, 20261121
LOOKS = (
    "tpu.projects.locations.nodes.list", "tpu.projects.locations.nodes.get", "storage.objects.list",
)  # fmt: skip


def measure(rounds: int, api_days: float) -> dict[str, Any]:
    """Both, over the same week in numbers, and over so many days of it by the API; and `fleet status`."""
    members = fleet()
    found: dict[str, Any] = {}
    zones = {member.zone for member in members}
    movable = [replace(one, others=tuple(sorted(zones - {one.zone}))) for one in members]
    for name, some, run in (
        ("reconciler", members, _ours),
        ("reconciler, other zones allowed", movable, _ours),
        ("serial loop", members, _serial),
    ):
        found[name] = _timed(name, lambda some=some, run=run: _in_numbers(some, run))  # type: ignore[misc]
    for name, ask in (("reconciler", week.ours), ("serial loop", week.serial)):
        over_api = f"{name}, over the API"
        found[over_api] = _timed(over_api, lambda ask=ask: _over_api(members, ask, api_days))  # type: ignore[misc]
    return found | {
        "status": measure_status(members, rounds),
        "what": f"{SLICES} slices in {ZONES} zones, {WEEK_S / HOUR_S / 24:.0f} virtual days, seed {SEED}",
        "climate": Climate().__dict__,
        "on": described(["requests", "aiohttp"]),
    }


def _timed(name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    begun = time.monotonic()
    found = run() | {"took_s": round(time.monotonic() - begun, 1)}
    print(f"{name}: {found}", file=sys.stderr, flush=True)
    return found


def _in_numbers(members: list[Node], run: Callable[[VirtualCloud, list[Node]], float]) -> dict[str, Any]:
    cloud = VirtualCloud(members, Climate(), WEEK_S, SEED)
    ready_s = run(cloud, members)
    tally = cloud.tally
    return {
        "lost": tally.lost,
        "recovered": len(tally.recoveries_s),
        "recovery_s": _recoveries(tally.recoveries_s),
        "available": ready_s / (WEEK_S * len(members)),
        "healthy_deleted": len(tally.healthy_deleted),
        "requests": {
            "looks": tally.lists,
            "deletes": tally.deletes,
            "creates": tally.creates,
            "creates_refused": tally.refused,
        },
    }


def _over_api(members: list[Node], ask: Callable[[week.Week], None], days: float) -> dict[str, Any]:
    climate = Climate()
    zones = {member.zone for member in members}
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        Emulated(Path(folder), zones, week.durations(climate)) as cloud,
    ):
        weather = Weather({member.name: member.zone for member in members}, climate, WEEK_S, SEED)
        span = week.Week(cloud, members, weather, days * 24 * HOUR_S)
        ask(span)
        told = span.told()
    methods = Counter(told["methods"])
    recoveries_s = told.pop("recoveries_s")
    return told | {
        "days": days,
        "recovered": len(recoveries_s),
        "recovery_s": _recoveries(recoveries_s),
        "requests": {
            "looks": sum(methods[name] for name in LOOKS),
            "deletes": methods["tpu.projects.locations.nodes.delete"],
            "creates": methods["tpu.projects.locations.nodes.create"],
            "creates_refused": told["stock_outs"],
        },
    }


def _recoveries(seconds: list[float]) -> dict[str, float]:
    return {"median": median(seconds), "p95": quantiles(seconds, n=20)[-1], "longest": max(seconds)}


def fleet(count: int = SLICES) -> list[Node]:
    """Preemptible slices of v6e-8, dealt out over the zones."""
    kind = CATALOG.by_name("v6e-8")
    assert kind is not None
    zones = CATALOG.zones[:ZONES]
    assert len(zones) == ZONES, "the catalog lists fewer zones"
    return [
        Node(
            slice="extract", name=names.fleet_member(zone, n // ZONES), zone=zone, home=zone, kind=kind,
            spot=True, reserved=False, runtime_version="v2-alpha-tpuv6e", run="extract", labels={}, member=n,
        )
        for n, zone in zip(range(count), cycle(zones), strict=False)
    ]  # fmt: skip


class _Ready:
    """Node-seconds in which nodes were READY."""

    def __init__(self, cloud: VirtualCloud):
        self._cloud, self._at_s, self.total_s = cloud, 0.0, 0.0

    def advance(self, to_s: float) -> None:
        to_s = min(to_s, WEEK_S)
        ready = sum(node.state == "READY" for node in self._cloud.nodes.values())
        self.total_s += ready * (to_s - self._at_s)
        self._at_s = to_s
        self._cloud.advance(to_s)


def _ours(cloud: VirtualCloud, members: list[Node]) -> float:
    ready = _Ready(cloud)
    keeper = Keeper(members, cloud, cloud, Notebook(), Limits(), {"layer": "tpu"}, random.Random(SEED))
    while cloud.now_s < WEEK_S:
        keeper.step()
        ready.advance(cloud.now_s + LOOK_EVERY_S)
    return ready.total_s


def _serial(cloud: VirtualCloud, members: list[Node]) -> float:
    ready = _Ready(cloud)
    while cloud.now_s < WEEK_S:
        for member in members:
            cloud.tally.lists += 1
            ready.advance(cloud.now_s + DESCRIBE_S)
            found = cloud.nodes[member.name].state
            if found == "READY" and not cloud.ill(member.zone):
                continue
            _replaced_serially(cloud, ready, member)
            if cloud.now_s >= WEEK_S:
                break
        ready.advance(cloud.now_s + LOOK_EVERY_S)
    return ready.total_s


def _replaced_serially(cloud: VirtualCloud, ready: _Ready, member: Node) -> None:
    """Deletes, unless that request fails, and creates until there is a node."""
    if cloud.ill(member.zone) and cloud.nodes[member.name].state == "READY":
        ready.advance(cloud.now_s + PAUSE_S)
        return  # neither deleted nor, since it exists, created
    while cloud.now_s < WEEK_S:
        took_s, failure = cloud.replace(member.name)
        ready.advance(cloud.now_s + PAUSE_S + took_s)
        if failure is None:
            cloud.arrive(member.name, cloud.now_s)
            return
        ready.advance(cloud.now_s + RETRY_S)

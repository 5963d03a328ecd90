"""A thousand slices in eight zones for a week of preemptions, on a clock of its own: ours and a serial loop.

Both meet the same losses, stock-outs and ill zones, drawn from one seed before anything runs. The
loop is what shared scripts for such fleets do, kathir-ks/activation-extract's deploy_to_tpus.sh among
them: one node after another is described, what isn't READY is deleted and created until that succeeds, and
an error of any kind counts as "not found". That a node exists ends its attempts here, though
not there: else it would hang on the first healthy node that it took for missing.
"""

import random
import sys
import time
from statistics import median, quantiles
from typing import Any

from benchmarks.machine import described
from fleet.decide import Limits
from fleet.loop import Keeper
from fleet.virtual import HOUR_S, Climate, Notebook, VirtualCloud
from infra.catalog import CATALOG
from infra.nodes import Node

SLICES, ZONES, WEEK_S, SEED = 1000, 8, 7 * 24 * HOUR_S, 20261121
LOOK_EVERY_S = 60.0
# Of the serial loop: a describe by the command line, and its pauses, from its own script.
DESCRIBE_S, PAUSE_S, RETRY_S = 1.0, 5.0, 30.0


def measure() -> dict[str, Any]:
    """Both, over the same week."""
    members = _members()
    found = {}
    for name, run in (("reconciler", _ours), ("serial loop", _serial)):
        begun = time.monotonic()
        cloud = VirtualCloud(members, Climate(), WEEK_S, SEED)
        ready_s = run(cloud, members)
        tally = cloud.tally
        found[name] = {
            "lost": tally.lost,
            "recovered": len(tally.recoveries_s),
            "recovery_s": {
                "median": median(tally.recoveries_s),
                "p95": quantiles(tally.recoveries_s, n=20)[-1],
                "longest": max(tally.recoveries_s),
            },
            "available": ready_s / (WEEK_S * len(members)),
            "healthy_deleted": len(tally.healthy_deleted),
            "requests": {
                "looks": tally.lists,
                "deletes": tally.deletes,
                "creates": tally.creates,
                "creates_refused": tally.refused,
            },
            "took_s": round(time.monotonic() - begun, 1),
        }
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return found | {
        "what": f"{SLICES} slices in {ZONES} zones, {WEEK_S / HOUR_S / 24:.0f} virtual days, seed {SEED}",
        "climate": Climate().__dict__,
        "on": described([]),
    }


def _members() -> list[Node]:
    kind = CATALOG.by_name("v6e-8")
    assert kind is not None
    zones = CATALOG.zones[:ZONES]
    assert len(zones) == ZONES, "the catalog lists fewer zones"
    return [
        Node(
            slice="extract", name=f"tpu-{zones[n % ZONES]}-{n // ZONES}", zone=zones[n % ZONES],
            home=zones[n % ZONES], kind=kind, spot=True, reserved=False, runtime_version="", run="extract",
            labels={}, member=n,
        )
        for n in range(SLICES)
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

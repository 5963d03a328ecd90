"""A cloud that shows what it is told, for one controller, and a memory as the bucket keeps it."""

import json
import random
from collections.abc import Mapping

from fleet.controller import Controller
from fleet.controller_state import ControllerState, parse
from fleet.decide import Limits
from fleet.model import ObservedNode, View, WorkerStatus, ZoneView
from fleet.zones import Answer, NodeRequest
from infra.slices.nodes import Node
from tests.fleet.conftest import OWNER, labels
from tests.fleet.virtual import Notebook

NOW_S = 1000.0


class Kept(Notebook):
    """A memory as the bucket keeps it: one that reads it shares nothing with one that wrote it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.signs = 0

    def read(self) -> ControllerState:
        return parse(self.writes[-1], "memory")[0] if self.writes else ControllerState()

    def write(self, state: ControllerState, renew: bool = True) -> None:
        self.writes.append(json.dumps(state.to_json()))

    def renew(self, state: ControllerState) -> None:
        self.signs += 1


class Shown:
    """A cloud that shows what it is told, and remembers what it is asked for."""

    def __init__(self, *looks: View):
        self.looks = list(looks)
        self.requests: list[NodeRequest] = []
        self.answers: list[Answer] = []
        self.zones: list[str] = []

    def observe(self, zones: object) -> View:
        self.zones = [*zones]  # type: ignore[misc]
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def begin(self, request: NodeRequest) -> None:
        self.requests.append(request)

    def ended(self) -> list[Answer]:
        result, self.answers = self.answers, []
        return result


def watching(
    cloud: Shown, members: list[Node], store: Notebook | None = None, lead: bool = True
) -> Controller:
    return Controller(members, cloud, cloud, store or Kept(), Limits(), OWNER, random.Random(0), lead=lead)


def view(
    members: list[Node],
    at_s: float = NOW_S,
    statuses: Mapping[str, list[WorkerStatus]] | None = None,
    **states: str,
) -> View:
    """Members of ours in READY, or in states by `m` and their number; none where that is empty."""
    zones: dict[str, dict[str, ObservedNode]] = {
        zone: {} for member in members for zone in (*member.places, *member.spread)
    }
    for item in members:
        if state := states.get(f"m{item.member}", "READY"):
            zones[item.zone][item.name] = ObservedNode(item.name, item.zone, state, "1", 1.0, labels(item))
    return View(at_s, {zone: ZoneView(nodes) for zone, nodes in zones.items()}, statuses or {})

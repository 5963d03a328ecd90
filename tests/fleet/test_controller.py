"""A keeper against a cloud that knows the truth: what is healthy stays, what is lost comes back."""

import json
import random
from dataclasses import replace

import pytest
from fleet.loop import Keeper, Look
from fleet.virtual import HOUR_S, Climate, Notebook, VirtualCloud
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.decide import Limits
from fleet.errors import FleetError
from fleet.failures import Failure, Kind
from fleet.memory import Memory, Refusal, parse
from fleet.state import Action, Cause, Place, Seen, View, Word, ZoneView
from tests.fleet.conftest import ZONES, fleet

CALM = Climate(preemption_h=0, wave_h=0, dry_h=0, ill_h=0)


def keeper(cloud: VirtualCloud, count: int, zones: int = 2, books: Notebook | None = None) -> Keeper:
    dice = random.Random(0)
    return Keeper(fleet(count, zones), cloud, cloud, books or Notebook(), Limits(), {"layer": "tpu"}, dice)


def live(one: Keeper, cloud: VirtualCloud, until_s: float, every_s: float = 60.0) -> list[Look]:
    looks = []
    while cloud.now_s < until_s:
        cloud.advance(cloud.now_s + every_s)
        looks.append(one.step())
    return looks


def test_nothing_is_done_about_a_healthy_fleet() -> None:
    cloud = VirtualCloud(fleet(8), CALM, HOUR_S, seed=1)
    looks = live(keeper(cloud, 8), cloud, HOUR_S)
    assert all(one.action is Action.LEAVE for look in looks for one in look.decisions)
    assert cloud.tally.creates == cloud.tally.deletes == 0


def test_what_is_taken_away_comes_back_and_is_an_event() -> None:
    cloud = VirtualCloud(fleet(8), CALM, HOUR_S, seed=1)
    one = keeper(cloud, 8)
    one.step()
    lost = cloud.nodes["tpu-us-east1-d-2"]
    lost.state, before = "PREEMPTED", lost.instance
    looks = live(one, cloud, HOUR_S)
    assert (lost.state, cloud.tally.creates, cloud.tally.deletes) == ("READY", 1, 1)
    assert lost.instance != before, "a new generation"
    events = [event for look in looks for event in look.events]
    assert any("tpu-us-east1-d-2: replace (Google says PREEMPTED)" in event for event in events)
    assert "tpu-us-east1-d-2: created" in events


def test_an_update_that_ends_during_a_look_stays_in_hand() -> None:
    """What the look shows may be from before the end; to act on it would replace what has just come."""
    cloud = VirtualCloud(fleet(2), CALM, HOUR_S, seed=1)
    one = keeper(cloud, 2)
    cloud.nodes["tpu-us-east1-d-0"].state = "PREEMPTED"
    one.step()
    shown = cloud.look(["us-central1-b", "us-east1-d"])
    assert cloud.next_end_s is not None
    look, cloud.look = cloud.look, lambda zones: (cloud.advance(cloud.next_end_s or 0), shown)[1]  # type: ignore[method-assign]
    assert one.step().decisions[1].action is Action.WAIT
    cloud.look = look  # type: ignore[method-assign]
    live(one, cloud, HOUR_S)
    assert (cloud.tally.creates, cloud.tally.healthy_deleted) == (1, [])


def test_a_zone_without_chips_is_asked_later_each_time_and_keeps_no_other_waiting() -> None:
    """The ancestor's serial loop stood before the first zone that had none."""
    cloud = VirtualCloud(fleet(8), CALM, 4 * HOUR_S, seed=1)
    dry, other = "us-central1-b", "us-east1-d"
    cloud._dry[dry] = [(0.0, 3 * HOUR_S)]
    for node in cloud.nodes.values():
        node.state = "PREEMPTED"
    one = keeper(cloud, 8)
    live(one, cloud, 0.25 * HOUR_S)
    back = {name: node.state for name, node in cloud.nodes.items()}
    assert all(state == "READY" for name, state in back.items() if other in name)
    assert all(state != "READY" for name, state in back.items() if dry in name)
    live(one, cloud, 2.9 * HOUR_S)
    assert 4 <= cloud.tally.refused <= 4 * 20, "waits of 30 s, doubled up to 15 min"
    live(one, cloud, 4 * HOUR_S)
    assert all(node.state == "READY" for node in cloud.nodes.values())
    assert not cloud.tally.healthy_deleted


def test_a_member_whose_zone_has_no_chips_is_made_in_another_and_stays_there() -> None:
    home, other = "us-central1-b", "us-east1-d"
    members = fleet(8, others=(home, other))
    cloud = VirtualCloud(members, CALM, 4 * HOUR_S, seed=1)
    cloud._dry[home] = [(0.0, 1.5 * HOUR_S)]
    for name, node in cloud.nodes.items():
        node.state = "PREEMPTED" if home in name else "READY"
    one = Keeper(members, cloud, cloud, Notebook(), Limits(), {"layer": "tpu"}, random.Random(0))
    looks = live(one, cloud, 0.5 * HOUR_S)
    assert all(node.state == "READY" for node in cloud.nodes.values())
    assert {member.zone for member in looks[-1].members} == {other}
    assert cloud.tally.refused == 4, "each asked at home once"
    looks = live(one, cloud, 4 * HOUR_S)
    assert cloud.tally.creates == 8, "nobody is moved back that is healthy"
    assert not cloud.tally.healthy_deleted
    assert not looks[-1].orphans


@pytest.mark.parametrize("kind", [Kind.QUOTA, Kind.PERMISSION, Kind.INVALID, Kind.LOGIN])
def test_what_waiting_does_not_mend_is_tried_once_until_somebody_acts(kind: Kind) -> None:
    cloud = VirtualCloud(fleet(2), CALM, 9 * HOUR_S, seed=1)
    cloud.nodes["tpu-us-east1-d-0"].state = "PREEMPTED"
    asked: list[str] = []

    def refuse(name: str, zone: str) -> tuple[float, Failure]:
        asked.append(name)
        return 1.0, Failure(kind, "no", "TPUV6E")

    cloud.replace = refuse  # type: ignore[method-assign]
    one = keeper(cloud, 2)
    looks = live(one, cloud, 2 * HOUR_S)
    assert asked == ["tpu-us-east1-d-0"]
    assert looks[-1].decisions[1].action is Action.HOLD
    assert "fix:" in looks[-1].decisions[1].why
    one.memory.acted()
    live(one, cloud, 3 * HOUR_S)
    assert len(asked) == 2


OLD, NOW_S = Failure(Kind.EXISTS, "there already"), 1000.0


def refused(*failures: tuple[str, Failure | None], memory: Memory | None = None) -> Memory:
    """What is remembered of an update at NOW_S of members in zone z, whose outcomes come in this order."""
    cloud = Drawn([View(NOW_S, {}, {})])
    one = Keeper([], cloud, cloud, Notebook(), Limits(), {}, random.Random(0))  # type: ignore[arg-type]
    one.memory = memory or Memory()
    for name, _ in failures:
        one.memory.attempted(name, Cause.PREEMPTION, NOW_S - 60)
    one._members = [replace(fleet(1)[0], name=name, zone="z", home="z") for name, _ in failures]
    cloud.outcome = dict(failures)
    one.step(may=())
    return one.memory


def test_a_members_old_refusal_does_not_hide_its_zones() -> None:
    memory = refused(("a", OLD))
    assert memory.refusal("a", "z").kind is Kind.EXISTS
    memory = refused(("b", Failure(Kind.QUOTA, "no more")), memory=memory)
    assert "no more" in memory.refusal("a", "z").stopped


@pytest.mark.parametrize(
    "others",
    [
        [Failure(Kind.QUOTA, "no more"), Failure(Kind.STOCK_OUT, "none")],
        [Failure(Kind.STOCK_OUT, "none"), Failure(Kind.QUOTA, "no more")],
        [Failure(Kind.QUOTA, "no more"), Failure(Kind.TRANSIENT, "503")],
        [Failure(Kind.QUOTA, "no more"), None],
        [None, Failure(Kind.QUOTA, "no more")],
    ],
)
def test_a_stop_for_people_outlives_what_the_same_update_says_of_neighbours(
    others: list[Failure | None],
) -> None:
    memory = refused(*zip("ab", others, strict=True))
    assert "no more" in memory.refusal("c", "z").stopped
    assert len([one for each in memory.attempts.values() for one in each if one.back_s]) == others.count(None)


def test_what_is_taken_in_says_nothing_of_its_zones_chips() -> None:
    memory = refused(("b", Failure(Kind.QUOTA, "no more")))
    cloud = VirtualCloud(fleet(1), CALM, HOUR_S, seed=1)
    one = keeper(cloud, 1)
    one.memory = memory
    (member,) = fleet(1)
    memory.refusals[member.zone] = memory.refusals.pop("z")
    cloud.held = dict  # type: ignore[method-assign, assignment]
    one._labels = {}
    assert one.step().begun == (member.name,)
    cloud.replace = lambda name, zone: (0.0, None)  # type: ignore[method-assign]
    live(one, cloud, 0.2 * HOUR_S)
    assert memory.last_back(member.name)
    assert memory.refusal("", member.zone).stopped


class Signs(Notebook):
    """Remembers when somebody asked for a sign of life."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def sign(self, memory: Memory) -> None:
        self.count += 1


def test_a_keeper_that_only_waits_for_its_update_shows_that_it_lives() -> None:
    books, cloud = Signs(), VirtualCloud(fleet(2), CALM, HOUR_S, seed=1)
    one = keeper(cloud, 2, books=books)
    cloud.nodes["tpu-us-east1-d-0"].state = "PREEMPTED"
    assert one.step().begun
    for _ in range(3):
        one.step(may=())
    assert books.count == 3
    live(one, cloud, 0.5 * HOUR_S)
    before = books.count
    one.step(may=())
    assert books.count == before, "who only looks is no keeper"


def test_what_an_update_moves_is_not_swept_from_the_zone_before() -> None:
    home, other = "us-central1-b", "us-east1-d"
    members = fleet(2, others=(home, other))
    name = members[0].name
    left = Seen(name, home, "PREEMPTED", "1", labels={"layer": "tpu"})
    swept: list[str] = []
    at = [View(60.0 * n, {home: ZoneView({name: left}), other: ZoneView({})}, {}) for n in range(1, 5)]
    cloud = Drawn(at)
    cloud.sweep = lambda leftover: swept.append(leftover.zone)  # type: ignore[method-assign, assignment]
    cloud.ended = lambda: None  # type: ignore[method-assign]
    one = Keeper([members[0]], cloud, cloud, Notebook(), Limits(), {"layer": "tpu"}, random.Random(0))  # type: ignore[arg-type]
    one.memory.refusals[home] = Refusal(1, 1e9, "", "none", Kind.STOCK_OUT)
    assert one.step().begun
    assert cloud.asked[0][1] == {name: Place(other, "1")}
    assert one.step().orphans == []
    assert not swept, "Pulumi deletes it"
    cloud.ended = lambda: {name: None}  # type: ignore[method-assign]
    one.step()
    assert swept == [home], "what is left of it then is nobody's"


def test_a_keeper_started_anew_has_spent_the_same_budget() -> None:
    books, cloud = Notebook(), VirtualCloud(fleet(2), CALM, HOUR_S, seed=1)
    first = keeper(cloud, 2, books=books)
    cloud.nodes["tpu-us-east1-d-0"].state = "PREEMPTED"
    first.step()
    again, _ = parse(json.dumps(books.read().to_json()), "memory")
    assert again.spent(Cause.PREEMPTION, cloud.now_s) == 1
    assert again == books.read()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"attempts": 3, "zones": {}}', '{"attempts": [{}], "zones": {}}']
)
def test_a_memory_that_cannot_be_read_is_not_taken_for_an_unspent_one(text: str) -> None:
    with pytest.raises(FleetError, match="can't be read"):
        parse(text, "gs://b/fleet/memory.json")


def test_a_week_of_preemptions_loses_no_healthy_node() -> None:
    members = fleet(40, zones=4)
    cloud = VirtualCloud(members, Climate(), 7 * 24 * HOUR_S, seed=7)
    live(keeper(cloud, 40, zones=4), cloud, 7 * 24 * HOUR_S, every_s=120.0)
    assert cloud.tally.lost > 100
    assert len(cloud.tally.recoveries_s) > 0.9 * cloud.tally.lost
    assert not cloud.tally.healthy_deleted


STATES = st.sampled_from(
    ["READY", "READY", "READY", "PREEMPTED", "TERMINATED", "CREATING", "STOPPED", "REPAIRING", "", "HIDDEN"]
)
KINDS = st.sampled_from(list(Kind))


@st.composite
def views(draw: st.DrawFn) -> View:
    """Anything that a look can bring: zones that fail in any way, nodes in any state, any word or none."""
    at_s = draw(st.floats(0, 1e6))
    zones: dict[str, ZoneView] = {}
    words: dict[str, list[Word]] = {}
    for member in fleet(6, zones=3):
        zones.setdefault(member.zone, ZoneView({}))
        if draw(st.booleans()):
            found = Seen(member.name, member.zone, draw(STATES), "1", draw(st.floats(0, 1e6)))
            nodes = zones[member.zone].nodes
            assert nodes is not None
            zones[member.zone] = ZoneView({**nodes, member.name: found})
        if draw(st.booleans()):
            word = draw(st.sampled_from(["", "running", "done", "failed"]))
            boot = draw(st.sampled_from(["", "booting", "ready", "failed"]))
            words[member.name] = [Word(draw(st.floats(0, 1e6)), boot=boot, work=word)]
    for zone in list(zones):
        if draw(st.integers(0, 2)) == 0:
            zones[zone] = ZoneView(None, Failure(draw(KINDS), "drawn"))
    return View(at_s, zones, words if draw(st.booleans()) else None)


class Drawn:
    """A cloud that shows what was drawn, and remembers what it was asked to replace."""

    def __init__(self, looks: list[View], kind: Kind = Kind.TRANSIENT):
        self.looks, self.at, self.kind = looks, -1, kind
        self.asked: list[tuple[View, dict[str, Place]]] = []
        self.outcome: dict[str, Failure | None] | None = None

    def look(self, zones: object) -> View:
        self.at += 1
        return self.looks[self.at]

    def sweep(self, leftover: Seen) -> Failure | None:
        return None

    def held(self) -> None:
        pass

    def start(self, places: dict[str, Place]) -> None:
        self.asked.append((self.looks[self.at], dict(places)))
        self.outcome = {name: Failure(self.kind, "drawn") for name in places}

    def ended(self) -> dict[str, Failure | None] | None:
        found, self.outcome = self.outcome, None
        return found


@given(st.lists(views(), min_size=1, max_size=8), KINDS)
@settings(max_examples=200, deadline=None)
def test_no_sequence_of_answers_replaces_a_node_that_nobody_called_useless(
    looks: list[View], kind: Kind
) -> None:
    """Replaced is only what Google says it took away, what isn't in a complete list, or what failed by its
    own word or by its silence while another one spoke; wherever it is made anew."""
    cloud = Drawn(sorted(looks, key=lambda one: one.at_s), kind)
    members = fleet(6, zones=3, others=ZONES[:3])
    one = Keeper(members, cloud, cloud, Notebook(), Limits(), {}, random.Random(0))  # type: ignore[arg-type]
    for _ in looks:
        one.step()
    zone_of = {member.name: member.zone for member in members}
    for view, places in cloud.asked:
        for node, place in places.items():
            was, zone_of[node] = zone_of[node], place.zone
            new = view.zones[place.zone].nodes or {}
            assert place.zone == was or node not in new, "there is one already"
            there = view.zones[was].nodes
            assert there is not None, "a zone that didn't answer"
            seen = there.get(node)
            assert place.instance == (seen.instance if seen else ""), "what may be deleted is what was seen"
            if seen is None or seen.state in ("PREEMPTED", "TERMINATED"):
                continue
            assert seen.state == "READY"
            (word,) = (view.words or {})[node]
            assert word.at_s >= seen.created_s, "a word of the node before"
            spoke = [name for name, (said,) in (view.words or {}).items() if abs(view.at_s - said.at_s) < 600]
            assert word.boot == "failed" or (set(spoke) - {node}), "silence that all share"
            assert word.work not in ("done", "failed")


def test_zones_that_only_ever_fail_lead_to_no_request_at_all() -> None:
    at = [replace(View(60.0 * n, {}, {}), zones={}) for n in range(30)]
    for kind in Kind:
        looks = [
            replace(one, zones={m.zone: ZoneView(None, Failure(kind, "no")) for m in fleet(4)}) for one in at
        ]
        cloud = Drawn(looks)
        one = Keeper(fleet(4), cloud, cloud, Notebook(), Limits(), {}, random.Random(0))  # type: ignore[arg-type]
        for _ in looks:
            one.step()
        assert not cloud.asked

"""A controller against a cloud that knows the truth: what is healthy stays, what is lost comes back."""

import random
from dataclasses import replace

import pytest

from fleet.controller import Controller
from fleet.controller_state import ControllerState, parse
from fleet.decide import Limits
from fleet.errors import FleetError
from fleet.model import Action, Cause, Claim, Condition, View, WorkerStatus, ZoneView
from fleet.observation import Observation
from fleet.show import Spent
from fleet.store import UnreachableError
from fleet.zones import Answer, NodeRequest, Verb
from infra.google.failures import Failure, Kind
from infra.slices.nodes import Node
from tests.fleet.conftest import ZONES, fleet, labels
from tests.fleet.shown import NOW_S, Kept, Shown, view, watching
from tests.fleet.virtual import HOUR_S, Notebook, VirtualCloud

HOME, OTHER = ZONES[:2]


def controller(cloud: VirtualCloud, members: list[Node] | int, store: Notebook | None = None) -> Controller:
    members = fleet(members) if isinstance(members, int) else members
    return Controller(members, cloud, cloud, store or Notebook(), Limits(), cloud.OWNER, random.Random(0))


def live(item: Controller, cloud: VirtualCloud, until_s: float, every_s: float = 60.0) -> list[Observation]:
    looks = []
    while cloud.now_s < until_s:
        cloud.advance(cloud.now_s + every_s)
        looks.append(item.step())
    return looks


def test_nothing_is_done_about_a_healthy_fleet() -> None:
    cloud = VirtualCloud(fleet(8))
    looks = live(controller(cloud, 8), cloud, HOUR_S)
    assert all(decision.action is Action.LEAVE for observation in looks for decision in observation.decisions)
    assert cloud.tally.creates == cloud.tally.deletes == 0


def test_what_is_taken_away_comes_back_and_is_an_event() -> None:
    cloud = VirtualCloud(fleet(8))
    item = controller(cloud, 8)
    item.step()
    cloud.lose("extract/5")
    before = cloud.nodes["extract/5"].instance
    looks = live(item, cloud, HOUR_S)
    assert (cloud.nodes["extract/5"].state, cloud.tally.creates, cloud.tally.deletes) == ("READY", 1, 1)
    assert cloud.nodes["extract/5"].instance != before, "a new node"
    events = [event for observation in looks for event in observation.events]
    assert "tpu-us-east1-d-2: replace (Google says PREEMPTED)" in events
    assert "tpu-us-east1-d-2: created" in events


def test_a_zone_without_chips_is_asked_later_each_time_and_keeps_no_other_waiting() -> None:
    """activation-extract's serial loop stood before the first zone that had none."""
    cloud = VirtualCloud(fleet(8), dry={HOME: (0.0, 3 * HOUR_S)})
    for key in list(cloud.nodes):
        cloud.lose(key)
    item = controller(cloud, 8)
    live(item, cloud, 0.25 * HOUR_S)
    assert {node.zone for node in cloud.nodes.values() if node.state == "READY"} == {OTHER}
    assert sum(node.state == "READY" for node in cloud.nodes.values()) == 4
    live(item, cloud, 2.9 * HOUR_S)
    assert 4 <= cloud.tally.refused <= 4 * 20, "waits of 30 s, doubled up to 15 min"
    live(item, cloud, 4 * HOUR_S)
    assert all(node.state == "READY" for node in cloud.nodes.values())
    assert not cloud.tally.healthy_deleted


def test_a_member_whose_zone_has_no_chips_is_made_in_another_under_a_free_name_and_stays_there() -> None:
    members = fleet(8, others=(HOME, OTHER))
    cloud = VirtualCloud(members, dry={HOME: (0.0, 1.5 * HOUR_S)})
    for member in members:
        if member.home == HOME:
            cloud.lose(member.key)
    item = controller(cloud, members)
    looks = live(item, cloud, 0.5 * HOUR_S)
    assert all(node.state == "READY" for node in cloud.nodes.values())
    assert {member.zone for member in looks[-1].members} == {OTHER}
    assert sorted(member.name for member in looks[-1].members) == [f"tpu-{OTHER}-{n}" for n in range(8)]
    assert cloud.tally.refused == 4, "each asked at home once"
    looks = live(item, cloud, 4 * HOUR_S)
    assert cloud.tally.creates == 8, "nobody is moved back that is healthy"
    assert not cloud.tally.healthy_deleted
    assert not looks[-1].orphans


@pytest.mark.parametrize("kind", [Kind.QUOTA, Kind.PERMISSION, Kind.INVALID, Kind.LOGIN])
def test_what_waiting_does_not_mend_is_tried_once_until_somebody_acts(kind: Kind) -> None:
    cloud = VirtualCloud(fleet(2))
    cloud.lose("extract/1")
    requested: list[str] = []

    def refuse(key: str, request: NodeRequest) -> Answer:
        requested.append(key)
        return Answer(request, Failure(kind, "no", "TPUV6E"))

    cloud.create = refuse  # type: ignore[method-assign]
    item = controller(cloud, 2)
    looks = live(item, cloud, 2 * HOUR_S)
    assert requested == ["extract/1"]
    assert looks[-1].decisions[1].action is Action.HOLD
    assert "fix:" in looks[-1].decisions[1].why
    item.state.retry_now()
    live(item, cloud, 3 * HOUR_S)
    assert len(requested) == 2


OLD = Failure(Kind.EXISTS, "there already")


def refused(*failures: tuple[str, Failure | None], state: ControllerState | None = None) -> ControllerState:
    """Return the state after creations at NOW_S in zone z, whose answers come in this order."""
    members = [replace(fleet(1)[0], slice=name, name=name, zone="z", home="z") for name, _ in failures]
    cloud = Shown(View(NOW_S, {}, {}))
    item = watching(cloud, members)
    item.state = state or ControllerState()
    for member in members:
        item.state.begin_attempt(member.key, Cause.PREEMPTION, NOW_S - 60)
        item.state.requested(member.key, "z", member.name)
    of = {member.slice: NodeRequest(Verb.CREATE, member) for member in members}
    cloud.answers = [Answer(of[name], failure) for name, failure in failures]
    item.step(only=())
    return item.state


def test_a_members_old_refusal_does_not_hide_its_zones() -> None:
    state = refused(("a", OLD))
    assert state.refusal("a/0", "z").kind is Kind.EXISTS
    state = refused(("b", Failure(Kind.QUOTA, "no more")), state=state)
    assert "no more" in state.refusal("a/0", "z").stopped


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
def test_a_stop_for_people_outlives_what_the_same_step_hears_of_neighbours(
    others: list[Failure | None],
) -> None:
    state = refused(*zip("ab", others, strict=True))
    assert "no more" in state.refusal("c/0", "z").stopped


def test_a_controller_that_only_waits_for_what_it_began_renews_its_lease() -> None:
    store, cloud = Kept(), VirtualCloud(fleet(2))
    item = controller(cloud, 2, store)
    cloud.lose("extract/1")
    live(item, cloud, 200.0, every_s=10.0)
    assert cloud.nodes["extract/1"].state == "CREATING"
    before = store.signs
    assert [item.step().begun for _ in range(3)] == [()] * 3
    assert store.signs == before + 3
    Controller(fleet(2), cloud, cloud, store, Limits(), cloud.OWNER, lead=False).step()
    assert store.signs == before + 3, "an observer renews nothing"


def test_an_attempt_is_written_before_anything_is_asked_and_open_until_the_node_is_ready() -> None:
    """A loss without a recovery is on record after a kill at any request."""
    store, cloud = Kept(), VirtualCloud(fleet(2))
    item, requested = controller(cloud, 2, store), list[tuple[str, Verb]]()
    begin = cloud.begin

    def observed(request: NodeRequest) -> None:
        recovery_cause = store.read().recovery_cause("extract/1")
        assert recovery_cause is Cause.PREEMPTION, f"unknown to who comes after a kill at {request.verb}"
        requested.append((request.node.key, request.verb))
        begin(request)

    cloud.begin = observed  # type: ignore[method-assign]
    cloud.lose("extract/1")
    while not any("created" in event for event in item.step().events):
        if requested:
            assert store.read().recovery_cause("extract/1") is Cause.PREEMPTION
        cloud.advance(cloud.now_s + 10)
    assert [verb for _, verb in requested if verb is not Verb.CHECK] == [Verb.DELETE, Verb.CREATE]
    assert store.read().recovery_cause("extract/1") is None


@pytest.mark.parametrize("seed", range(8))
def test_controllers_killed_after_any_step_are_followed_by_ones_that_create_nothing_twice(seed: int) -> None:
    store, rng = Kept(), random.Random(seed)
    members = fleet(6, others=(HOME, OTHER))
    cloud = VirtualCloud(members)
    item = controller(cloud, members, store)
    for key in ("extract/1", "extract/2", "extract/5"):
        cloud.lose(key)
    while cloud.now_s < HOUR_S:
        item.step()
        cloud.advance(cloud.now_s + rng.choice([5, 30, 90]))
        if rng.random() < 0.5:
            cloud.ended()  # nobody hears these
            item = controller(cloud, members, store)
    assert all(node.state == "READY" for node in cloud.nodes.values())
    assert cloud.tally.creates == 3
    assert not cloud.tally.healthy_deleted
    assert store.read().spent(Cause.PREEMPTION, cloud.now_s) == 3, "budgets are spent once"


def test_a_poll_that_fails_is_no_refusal_and_nothing_is_created_a_second_time() -> None:
    """The outcome of the creation is unknown; its zone refused nothing."""
    (member,) = members = fleet(1, others=(OTHER,))
    cloud = Shown(view(members, m0=""))
    entry = watching(cloud, members)
    entry.step()
    (create,) = cloud.requests
    cloud.answers = [Answer(create, operation="operations/1")]
    entry.step()
    (_, check) = cloud.requests
    assert check.verb is Verb.CHECK
    cloud.answers = [Answer(check, Failure(Kind.TRANSIENT, "unavailable"))]
    entry.step()
    assert [item.verb for item in cloud.requests] == [Verb.CREATE, Verb.CHECK, Verb.CHECK]
    assert not entry.state.refusals
    cloud.answers = [Answer(check, Failure(Kind.STOCK_OUT, "none"), done=True)]
    observation = entry.step()
    assert observation.failures.keys() == {member.key}
    assert cloud.requests[-1].node.zone == OTHER, "that is a refusal"


def test_who_has_lost_the_lease_gives_no_node_new_settings() -> None:
    class Lost(Kept):
        error: FleetError | None = None

        def renew(self, state: ControllerState) -> None:
            if self.error:
                raise self.error

    members, store = fleet(2), Lost()
    cloud = Shown(view(members))
    item = watching(cloud, members, store)
    item.follow(members, spec=lambda _: "new")
    store.error = FleetError("another controller acts")
    with pytest.raises(FleetError, match="another"):
        item.step()
    store.error = UnreachableError("no bucket")
    assert "no action taken: no bucket" in item.step().events
    assert cloud.requests == []
    store.error = None
    item.step()
    assert [request.verb for request in cloud.requests] == [Verb.UPDATE, Verb.UPDATE]


def test_a_claim_without_proof_spends_no_budget_and_delays_no_recovery() -> None:
    """An impostor's status costs nothing."""
    members = fleet(2, bundle="b")
    claims = {members[0].name: [WorkerStatus(NOW_S - 1, "failed", "bundle")]}
    cloud = Shown(view(members, statuses=claims))
    entry = watching(cloud, members)
    entry.step()
    (request,) = cloud.requests
    assert (request.verb, request.claim, request.instance) == (Verb.DELETE, Claim.BOOT_FAILED, "1")
    cloud.answers = [Answer(request, Failure(Kind.TRANSIENT, "lives, and is left alone"), spared=True)]
    observation = entry.step()
    assert observation.decisions[0].action is Action.HOLD, "asked again, later each time"
    assert entry.state.spent(Cause.FAILURE, NOW_S) == 0
    assert not entry.state.bundles, "nor is a bundle to blame"
    cloud.looks = [view(members, NOW_S + 1, m0="PREEMPTED")]
    entry.step()
    assert [item.claim for item in cloud.requests] == [Claim.BOOT_FAILED, Claim.NONE], "at once"
    cloud.answers = [Answer(cloud.requests[-1])]
    cloud.looks = [view(members, NOW_S + 2, m0="")]
    entry.step()
    assert cloud.requests[-1].verb is Verb.CREATE, "at once"


def test_a_bundle_that_failed_by_proof_and_booted_nowhere_is_rolled_to_nobody() -> None:
    members = fleet(3, bundle="b1")

    def observation(at_s: float, **states: str) -> View:
        result = view(
            members, at_s, {members[0].name: [WorkerStatus(NOW_S - 1, "failed", "python")]}, **states
        )
        for zone in result.zones.values():
            for name, observed in (zone.nodes or {}).items():
                zone.nodes[name] = replace(observed, labels={**observed.labels, "bundle": "b1"})  # type: ignore[index]
        return result

    cloud = Shown(observation(NOW_S, m1="CREATING"))
    entry = watching(cloud, members)
    entry.step()
    (request,) = cloud.requests
    cloud.answers = [Answer(request, done=True)]
    cloud.looks = [observation(NOW_S + 60, m0="", m1="PREEMPTED")]
    entry.step()
    decisions = entry.step().decisions
    assert [item.action for item in decisions[:2]] == [Action.HOLD, Action.HOLD]
    assert (
        "no node has booted with the bundle b1: tpu-us-central1-b-0: its boot failed at python"
        in decisions[1].why
    )
    assert "fix: tpu publish" in decisions[1].why
    assert len(cloud.requests) == 1
    entry.follow(fleet(3, bundle="b2"))
    entry.step()
    assert [item.verb for item in cloud.requests[1:]] == [Verb.CREATE, Verb.DELETE]


def test_a_bundle_that_booted_elsewhere_is_not_to_blame() -> None:
    members = fleet(2, bundle="b1")
    statuses = {
        members[0].name: [WorkerStatus(NOW_S - 1, "failed", "python")],
        members[1].name: [WorkerStatus(NOW_S - 9, "ready")],
    }
    result = view(members, NOW_S, statuses)
    for zone in result.zones.values():
        for name, observed in (zone.nodes or {}).items():
            zone.nodes[name] = replace(observed, labels={**observed.labels, "bundle": "b1"})  # type: ignore[index]
    cloud = Shown(result)
    entry = watching(cloud, members)
    entry.step()
    cloud.answers = [Answer(cloud.requests[0], done=True)]
    cloud.looks = [view(members, NOW_S + 60, m0="")]
    assert [item.verb for item in (entry.step(), cloud.requests)[1]] == [Verb.DELETE, Verb.CREATE]


def test_a_zone_that_the_settings_name_no_more_is_looked_into_while_members_live_there() -> None:
    """A node that isn't seen would be created a second time."""
    before, after = fleet(4), fleet(4, zones=1)
    cloud = VirtualCloud(before)
    item = Controller(
        after, cloud, cloud, Notebook(), Limits(), cloud.OWNER, random.Random(0), zones={OTHER}
    )  # fmt: skip
    observation = live(item, cloud, 0.1 * HOUR_S)[-1]
    assert cloud.tally.creates == cloud.tally.deletes == 0
    assert {decision.condition for decision in observation.decisions} == {Condition.WORKING}
    assert "is no longer a zone of its fleet" in observation.decisions[1].why
    cloud.lose("extract/1")
    live(item, cloud, 0.5 * HOUR_S)
    assert (cloud.nodes["extract/1"].zone, cloud.nodes["extract/3"].zone) == (HOME, OTHER), "as it is lost"


def test_where_members_were_made_is_looked_into_by_who_comes_after() -> None:
    """Even where the list of all zones doesn't answer."""
    store, members = Kept(), fleet(2, others=ZONES[2:3])
    cloud = VirtualCloud(members, dry={HOME: (0.0, HOUR_S)})
    cloud.lose("extract/0")
    live(controller(cloud, members, store), cloud, 0.3 * HOUR_S)
    assert cloud.nodes["extract/0"].zone == ZONES[2]
    live(controller(cloud, fleet(2), store), cloud, HOUR_S)
    assert cloud.tally.creates == 2
    assert len(cloud.nodes) == 2


def test_what_google_took_away_and_nobody_asks_for_is_swept_and_what_lives_is_not() -> None:
    (member, gone, alive, foreign) = fleet(4, zones=1)
    result = view([member, gone, alive, foreign], m1="PREEMPTED", m3="PREEMPTED")
    nodes = dict(result.zones[HOME].nodes or {})
    nodes[foreign.name] = replace(nodes[foreign.name], labels=labels(foreign, "another"))
    cloud = Shown(replace(result, zones={HOME: ZoneView(nodes)}))
    entry = watching(cloud, [member])
    observation = entry.step()
    assert [(item.verb, item.node.name) for item in cloud.requests] == [(Verb.DELETE, gone.name)]
    assert [orphan.name for orphan in observation.orphans] == [gone.name, alive.name]
    entry.step()
    assert len(cloud.requests) == 1, "asked once"
    watching(cloud, [member], lead=False).step()
    assert len(cloud.requests) == 1, "not by an observer"


def test_nodes_of_another_stack_are_neither_replaced_nor_deleted_nor_made_beside() -> None:
    members = fleet(4)
    result = view(
        members,
        statuses={member.name: [WorkerStatus(NOW_S - 1, "failed", "bundle")] for member in members},
        m1="PREEMPTED",
    )
    zones = {
        zone: ZoneView(
            {
                name: replace(observed, labels={**observed.labels, "stack": "x"})
                for name, observed in (item.nodes or {}).items()
            }
        )
        for zone, item in result.zones.items()
    }
    cloud = Shown(replace(result, zones=zones))
    entry = watching(cloud, members)
    for _ in range(3):
        observation = entry.step()
    assert cloud.requests == []
    assert Spent(observation).dollars == 0, "nor paid for"
    spent = Spent(watching(Shown(result), members).step())
    assert spent.dollars > 0 or spent.unknown
    assert (observation.orphans, {decision.action for decision in observation.decisions}) == (
        [],
        {Action.HOLD},
    )


def test_how_long_the_bucket_is_silent_is_known_to_who_comes_after() -> None:
    """Neither a controller that begins while it is silent, nor one that follows another, counts anew."""
    members, store = fleet(1), Kept()

    def step(at_s: float, silent: bool = True) -> Action:
        result = view(members, at_s, m0="PREEMPTED" if silent else "READY")
        cloud = Shown(replace(result, statuses=None) if silent else result)
        item = watching(cloud, members, store)
        (decision,) = item.step().decisions
        store.write(item.state)  # as a lease that is renewed does
        return decision.action

    assert step(NOW_S) is Action.HOLD
    assert step(NOW_S + 1000) is Action.HOLD
    assert step(NOW_S + 1001, silent=False) is Action.LEAVE
    assert step(NOW_S + 2000) is Action.HOLD
    assert step(NOW_S + 2802) is Action.REPLACE


@pytest.mark.parametrize(
    "text", ["", "[]", '{"attempts": 3, "zones": {}}', '{"attempts": [{}], "zones": {}}']
)
def test_a_memory_that_cannot_be_read_is_not_taken_for_an_unspent_one(text: str) -> None:
    with pytest.raises(FleetError, match="can't be read"):
        parse(text, "gs://b/controller.json")


def test_days_of_preemptions_and_errors_lose_no_healthy_node() -> None:
    members, rng = fleet(16, zones=4), random.Random(7)
    cloud = VirtualCloud(members, {HOME: (0.0, 9 * HOUR_S)}, {OTHER: (3 * HOUR_S, 12 * HOUR_S)})
    item = controller(cloud, members)
    for hour in range(48):
        for member in rng.sample(members, rng.choice([0, 1, 5])):
            cloud.lose(member.key)
        live(item, cloud, (hour + 1) * HOUR_S, every_s=300.0)
    assert cloud.tally.lost > 50
    assert len(cloud.tally.recoveries_s) > 0.9 * cloud.tally.lost
    assert not cloud.tally.healthy_deleted


def test_zones_that_only_ever_fail_lead_to_no_request_at_all() -> None:
    for kind in Kind:
        silent = {member.zone: ZoneView(None, Failure(kind, "no")) for member in fleet(4)}
        cloud = Shown(*(View(60.0 * n, silent, {}) for n in range(30)))
        item = watching(cloud, fleet(4))
        for _ in range(30):
            item.step()
        assert not cloud.requests

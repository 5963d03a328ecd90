"""What activation-extract's fleet scripts got wrong: the least of their design fails, ours doesn't."""

import random

import pytest

from fleet.controller import Controller
from fleet.controller_state import ControllerState
from fleet.decide import Limits, decide
from fleet.errors import FleetError
from fleet.model import Action, Condition, ObservedNode, View, WorkerStatus, ZoneView
from fleet.store import BucketStore
from infra.catalog import CATALOG
from infra.errors import SettingsError
from infra.slices.nodes import Node
from infra.slices.settings import TpuSettings
from tests.fleet.activation_extract import RUNTIME, Launcher, Loop, bring_back
from tests.fleet.conftest import OWNER, fleet, labels
from tests.fleet.virtual import HOUR_S, Climate, Notebook, VirtualCloud
from tests.fleet.world import SLICES, Cloud, settings

CALM = Climate(preemption_h=0, wave_h=0, dry_h=0, ill_h=0)
DRY, OTHER = "us-central1-b", "us-east1-d"


def cloud_of(count: int, lost: str = "") -> tuple[list[Node], VirtualCloud]:
    """Members in two zones; those whose name holds `lost` are preempted."""
    members = fleet(count)
    cloud = VirtualCloud(members, CALM, 9 * HOUR_S, seed=1)
    for node in cloud.nodes.values():
        node.state = "PREEMPTED" if lost and lost in node.name else "READY"
    return members, cloud


def controller(members: list[Node], cloud: VirtualCloud) -> Controller:
    return Controller(members, cloud, cloud, Notebook(), Limits(), cloud.OWNER, random.Random(0))


def watched(one: Controller, cloud: VirtualCloud, until_s: float) -> None:
    while cloud.now_s < until_s:
        one.step()
        cloud.advance(cloud.now_s + 60)


def judged(status: WorkerStatus, age_s: float = 7200.0) -> Condition:
    """How a READY member is whose worker said this, beside one that speaks; it is left alone in any case."""
    members, now_s = fleet(2, zones=1), 1e6
    nodes = {
        member.name: ObservedNode(member.name, member.zone, "READY", "1", now_s - age_s, labels(member))
        for member in members
    }
    statuses = {members[0].name: [status], members[1].name: [WorkerStatus(now_s, work="running")]}
    (result, _) = decide(
        members, View(now_s, {members[0].zone: ZoneView(nodes)}, statuses), ControllerState(), Limits(), OWNER
    )
    assert result.action is Action.LEAVE
    return result.condition


def test_one_pass_brings_back_all_that_was_lost() -> None:
    members, cloud = cloud_of(6, lost="tpu")
    names = [member.name for member in members]
    assert bring_back(names) == names[:1]
    item = controller(members, cloud)
    assert set(item.step().begun) == set(names)


def test_an_api_that_answers_with_errors_costs_no_healthy_node() -> None:
    members, cloud = cloud_of(6)
    cloud._ill = {zone: [(0.0, HOUR_S)] for zone in (DRY, OTHER)}
    watched(controller(members, cloud), cloud, HOUR_S)
    assert not cloud.tally.healthy_deleted
    loop = Loop(VirtualCloud(members, CALM, 9 * HOUR_S, seed=1), members, HOUR_S)
    loop.cloud._ill = cloud._ill
    loop.go()
    assert loop.cloud.tally.healthy_deleted


def test_a_zone_without_chips_keeps_no_other_waiting() -> None:
    members, cloud = cloud_of(6, lost="tpu")
    cloud._dry[DRY] = [(0.0, 2 * HOUR_S)]
    watched(controller(members, cloud), cloud, 0.5 * HOUR_S)
    assert all(node.state == "READY" for node in cloud.nodes.values() if OTHER in node.name)
    _, foreign = cloud_of(6, lost="tpu")
    foreign._dry[DRY] = [(0.0, 2 * HOUR_S)]
    Loop(foreign, members, 0.5 * HOUR_S).go()
    assert all(node.state != "READY" for node in foreign.nodes.values())


def test_hosts_get_the_image_of_v6e_and_one_of_older_chips_is_refused() -> None:
    assert RUNTIME in CATALOG.refused_runtimes
    assert settings()[TpuSettings].runtime_version == CATALOG.default_runtime != RUNTIME
    with pytest.raises(SettingsError, match=r"tpu-ubuntu2204-base.*none of older chips"):
        settings(SLICES, **{"tpu:runtimeVersion": RUNTIME})


def test_a_worker_that_cannot_be_reached_is_not_started_a_second_time() -> None:
    """No decision asks a worker; what is done comes from what it said. A second start would meet a lease."""
    launcher = Launcher()
    launcher.go(["a"])
    launcher.unreachable.add("a")
    launcher.go(["a"])
    assert launcher.started["a"] == 2
    assert judged(WorkerStatus(1e6 - 60, work="running")) is Condition.WORKING


def test_a_finished_job_is_not_started_again() -> None:
    launcher = Launcher(finished={"a"})
    for _ in range(3):
        launcher.go(["a"])
    assert launcher.started["a"] == 3
    assert judged(WorkerStatus(1e6 - 7000, boot="ready", work="done")) is Condition.DONE


def test_two_that_watch_do_not_replace_one_anothers_nodes() -> None:
    members, cloud = cloud_of(2, lost=OTHER)
    foreign = [Loop(cloud, members, HOUR_S) for _ in range(2)]
    observed = {member.name: foreign[0].describe(member) for member in members}
    for loop in foreign:
        loop.go(observed)
    assert cloud.tally.healthy_deleted
    bucket = Cloud(settings())
    BucketStore(bucket, OWNER.stack).write(ControllerState())  # type: ignore[arg-type]
    with pytest.raises(FleetError, match="another controller acts"):
        BucketStore(bucket, OWNER.stack).read()  # type: ignore[arg-type]


def test_a_look_costs_as_many_requests_however_many_there_are() -> None:
    requested = []
    for count in (2, 200):
        members, cloud = cloud_of(count)
        controller(members, cloud).step()
        requested.append(cloud.tally.lists)
        loop = Loop(cloud, members, HOUR_S)
        loop.go()
        assert loop.calls == count
    assert requested[0] == requested[1]


def test_what_is_lost_comes_back_with_nobody_there() -> None:
    """activation-extract's auto_recover waits for a node that nobody creates."""
    members, cloud = cloud_of(2, lost=OTHER)
    watched(controller(members, cloud), cloud, HOUR_S)
    assert all(node.state == "READY" for node in cloud.nodes.values())


def test_hosts_times_their_chips_are_a_slices_chips() -> None:
    """activation-extract's notes say that four hosts of eight chips are a slice of 64."""
    assert 4 * 8 != 64
    for kind in CATALOG.types:
        assert kind.hosts * kind.chips_per_host == kind.chips == int(kind.name.removeprefix("v6e-"))

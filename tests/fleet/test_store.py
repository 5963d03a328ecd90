"""State store of a controller: the lease, and writes whose answer is lost."""

import json
import os
import socket
import subprocess
import time

import pytest

from fleet.controller_state import ControllerState
from fleet.environment import Environment
from fleet.errors import FleetError
from fleet.model import Cause
from fleet.store import BucketStore, UnreachableError, object_of
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.slices.nodes import nodes
from tests.fleet.conftest import OWNER
from tests.fleet.world import Cloud, _world, settings  # noqa: F401


def store(cloud: Cloud, *now: object) -> BucketStore:
    return BucketStore(cloud, OWNER.stack, *now)  # type: ignore[arg-type]


def environment(cloud: Cloud) -> Environment:
    return Environment(settings(), nodes(settings()), cloud, cloud.stack)  # type: ignore[arg-type]


def test_a_controller_that_is_written_over_stops_before_it_does_anything(world: Cloud) -> None:
    world.states["train"] = "PREEMPTED"
    controller = environment(world).controller(lead=True)
    store(world).write(ControllerState())
    with pytest.raises(FleetError, match="another controller acts"):
        controller.step()
    assert not world.requests


def test_a_controller_that_died_is_followed_after_three_minutes(world: Cloud) -> None:
    now = [1000.0]
    store(world, lambda: now[0]).write(ControllerState())
    now[0] += 179
    with pytest.raises(FleetError, match="another"):
        store(world, lambda: now[0]).read()
    now[0] += 2
    store(world, lambda: now[0]).read()


def test_its_own_write_whose_answer_was_lost_is_no_others(world: Cloud) -> None:
    mine = store(world)
    write = world.write

    def lost(name: str, text: str, generation: int) -> int:
        write(name, text, generation)
        return write(name, text, generation)

    world.write = lost  # type: ignore[method-assign]
    mine.write(ControllerState())
    world.write = write  # type: ignore[method-assign]
    mine.write(ControllerState())
    assert world.objects[object_of(OWNER.stack)][1] == 2


def test_a_memory_is_written_again_over_an_older_one_whose_answer_was_lost(world: Cloud) -> None:
    mine = store(world)
    write = world.write

    def lost(name: str, text: str, generation: int) -> int:
        write(name, text, generation)
        raise RequestError(Failure(Kind.TRANSIENT, "unavailable"))

    world.write = lost  # type: ignore[method-assign]
    with pytest.raises(UnreachableError):
        mine.write(ControllerState())
    world.write = write  # type: ignore[method-assign]
    state = ControllerState()
    state.begin_attempt("train", Cause.NEW, 1.0)
    mine.write(state)
    assert json.loads(world.kept or "")["attempts"], "an attempt that isn't in the bucket spends no budget"


def test_a_request_that_the_bucket_refuses_is_not_taken_for_written(world: Cloud) -> None:
    mine = store(world)
    mine.write(ControllerState())

    def refuse(name: str, text: str, generation: int) -> int:
        raise RequestError(Failure(Kind.INVALID, "bad request"))

    world.write = refuse  # type: ignore[method-assign]
    with pytest.raises(UnreachableError, match="bad request"):
        mine.write(ControllerState())


def test_what_cannot_be_written_down_is_not_done(world: Cloud) -> None:
    controller = environment(world).controller(lead=True)
    world.states["train"] = "PREEMPTED"
    write = world.write

    def refuse(name: str, text: str, generation: int) -> int:
        raise RequestError(Failure(Kind.TRANSIENT, "unavailable"))

    world.write = refuse  # type: ignore[method-assign]
    observation = controller.step()
    assert not world.requests
    assert any("no action taken" in event for event in observation.events)
    world.write = write  # type: ignore[method-assign]
    controller.step()
    while not world.requests:
        time.sleep(0.01)
    assert world.requests == [("delete", "train")]
    assert controller.state.spent(Cause.PREEMPTION, world.at_s) == 1


def test_a_controller_whose_process_is_gone_from_this_host_is_followed_at_once(world: Cloud) -> None:
    store(world).write(ControllerState())
    ended = subprocess.Popen(["true"])
    ended.wait()
    parsed = json.loads(world.kept or "")
    with pytest.raises(FleetError, match=rf"process {os.getpid()}, its lease renewed 0 s ago"):
        store(world).read()
    parsed["leader"] |= {"process": ended.pid, "host": "another"}
    world.objects[object_of(OWNER.stack)] = json.dumps(parsed), 1
    with pytest.raises(FleetError, match="wait 180 s"):
        store(world).read()
    parsed["leader"] |= {"host": socket.gethostname()}
    world.objects[object_of(OWNER.stack)] = json.dumps(parsed), 1
    store(world).read()

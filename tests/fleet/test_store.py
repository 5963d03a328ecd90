"""Where a keeper's memory is kept: whose the place is, and what is written when an answer is lost."""

import json
import os
import socket
import subprocess

import pytest
from fleet.books import BucketBooks, UnreachableError

from fleet import __main__ as command
from fleet.errors import FleetError
from fleet.failures import Failure, Kind
from fleet.google import AskedError
from fleet.memory import Memory
from fleet.state import Cause
from infra.nodes import nodes
from tests.fleet.test_command import Cloud, Stack, _world, settings  # noqa: F401


def test_a_keeper_that_is_written_over_stops_before_it_does_anything(world: tuple[Cloud, Stack]) -> None:
    cloud, stack = world
    cloud.states["train"] = "PREEMPTED"
    keeper = command.Fleet(settings(), nodes(settings()), cloud).keeper()  # type: ignore[arg-type]
    BucketBooks(cloud).write(Memory())  # type: ignore[arg-type]
    with pytest.raises(FleetError, match="another `fleet` acts"):
        keeper.step()
    assert not stack.asked


def test_a_keeper_that_died_is_followed_after_three_minutes(world: tuple[Cloud, Stack]) -> None:
    cloud, _ = world
    now = [1000.0]
    BucketBooks(cloud, lambda: now[0]).write(Memory())  # type: ignore[arg-type]
    now[0] += 179
    with pytest.raises(FleetError, match="another"):
        BucketBooks(cloud, lambda: now[0]).read()  # type: ignore[arg-type]
    now[0] += 2
    BucketBooks(cloud, lambda: now[0]).read()  # type: ignore[arg-type]


def test_its_own_write_whose_answer_was_lost_is_no_others(world: tuple[Cloud, Stack]) -> None:
    cloud, _ = world
    books = BucketBooks(cloud)  # type: ignore[arg-type]
    write = cloud.write

    def lost(name: str, text: str, generation: int) -> int:
        write(name, text, generation)
        return write(name, text, generation)

    cloud.write = lost  # type: ignore[method-assign]
    books.write(Memory())
    cloud.write = write  # type: ignore[method-assign]
    books.write(Memory())
    assert cloud.generation == 2


def test_a_memory_is_written_again_over_an_older_one_whose_answer_was_lost(
    world: tuple[Cloud, Stack],
) -> None:
    cloud, _ = world
    books = BucketBooks(cloud)  # type: ignore[arg-type]
    write = cloud.write

    def lost(name: str, text: str, generation: int) -> int:
        write(name, text, generation)
        raise AskedError(Failure(Kind.TRANSIENT, "unavailable"))

    cloud.write = lost  # type: ignore[method-assign]
    with pytest.raises(UnreachableError):
        books.write(Memory())
    cloud.write = write  # type: ignore[method-assign]
    memory = Memory()
    memory.attempted("train", Cause.NEW, 1.0)
    books.write(memory)
    assert json.loads(cloud.kept or "")["attempts"], "an attempt that isn't in the bucket spends no budget"


def test_a_request_that_the_bucket_refuses_is_not_taken_for_written(world: tuple[Cloud, Stack]) -> None:
    cloud, _ = world
    books = BucketBooks(cloud)  # type: ignore[arg-type]
    books.write(Memory())

    def refuse(name: str, text: str, generation: int) -> int:
        raise AskedError(Failure(Kind.INVALID, "bad request"))

    cloud.write = refuse  # type: ignore[method-assign]
    with pytest.raises(UnreachableError, match="bad request"):
        books.write(Memory())


def test_what_cannot_be_written_down_is_not_done(world: tuple[Cloud, Stack]) -> None:
    cloud, stack = world
    keeper = command.Fleet(settings(), nodes(settings()), cloud).keeper()  # type: ignore[arg-type]
    cloud.states["train"] = "PREEMPTED"
    write = cloud.write

    def refuse(name: str, text: str, generation: int) -> int:
        raise AskedError(Failure(Kind.TRANSIENT, "unavailable"))

    cloud.write = refuse  # type: ignore[method-assign]
    look = keeper.step()
    assert not stack.asked
    assert any("nothing is done" in event for event in look.events)
    cloud.write = write  # type: ignore[method-assign]
    keeper.step()
    assert stack.asked == [("bring", ("train",))]
    assert keeper.memory.spent(Cause.PREEMPTION, cloud.at_s) == 1


def test_a_keeper_whose_process_is_gone_from_this_host_is_followed_at_once(
    world: tuple[Cloud, Stack],
) -> None:
    cloud, _ = world
    BucketBooks(cloud).write(Memory())  # type: ignore[arg-type]
    ended = subprocess.Popen(["true"])
    ended.wait()
    kept = json.loads(cloud.kept or "")
    with pytest.raises(FleetError, match=rf"process {os.getpid()}, its last sign 0 s ago"):
        BucketBooks(cloud).read()  # type: ignore[arg-type]
    kept["keeper"] |= {"process": ended.pid, "host": "another"}
    cloud.kept = json.dumps(kept)
    with pytest.raises(FleetError, match="wait 180 s"):
        BucketBooks(cloud).read()  # type: ignore[arg-type]
    kept["keeper"] |= {"host": socket.gethostname()}
    cloud.kept = json.dumps(kept)
    BucketBooks(cloud).read()  # type: ignore[arg-type]

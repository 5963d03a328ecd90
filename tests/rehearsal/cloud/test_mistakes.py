"""Errors of the emulation are told apart from Google's answers."""

from __future__ import annotations

import asyncio

from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.world import World


def world() -> World:
    return World("p", "1", VirtualClock())


async def outcome_of(world: World, error: Exception) -> JsonObject:
    async def work() -> None:
        raise error

    operations = Operations(world)
    begun = operations.longrunning(
        api="tpu",
        parent="projects/p/locations/z",
        metadata={},
        response_type="google.cloud.tpu.v2.Node",
        work=work,
    )
    return await operations.wait(begun["name"])


async def test_an_operation_that_ends_in_a_mistake_is_an_internal_error_and_blamed() -> None:
    emulated = world()
    body = await outcome_of(emulated, KeyError("zone"))
    assert body["error"]["code"] == 13
    assert len(emulated.mistakes) == 1
    assert "KeyError('zone')" in emulated.mistakes[0]


async def test_work_in_the_background_that_breaks_is_blamed_and_cancelled_work_is_not() -> None:
    async def breaks() -> None:
        raise RuntimeError("lost")

    emulated = world()
    emulated.spawn(breaks())
    emulated.spawn(asyncio.sleep(60))
    while not emulated.mistakes:
        await asyncio.sleep(0.01)
    for task in list(emulated.tasks):
        task.cancel()
    await asyncio.sleep(0.01)
    assert emulated.mistakes == ["in the background: RuntimeError('lost')"]
    assert not emulated.tasks

"""Virtual time, and operations on it."""

from __future__ import annotations

import asyncio
import time

import pytest

from rehearsal.cloud.core.clock import VirtualClock, rfc3339
from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.world import World
from tests.limits import HANG_S


def test_time_passes_at_the_rate() -> None:
    begun = time.monotonic()
    clock = VirtualClock(rate=100, start=1000)
    time.sleep(0.05)
    passed_s = clock.now() - 1000
    assert 5 <= passed_s <= (time.monotonic() - begun) * 100


def test_a_change_of_rate_keeps_the_time() -> None:
    clock = VirtualClock(rate=1000, start=0)
    time.sleep(0.01)
    clock.rate = 0
    stopped = clock.now()
    time.sleep(0.01)
    assert clock.now() == stopped >= 10


def test_times_are_written_as_google_writes_them() -> None:
    assert rfc3339(1_795_212_118.00101) == "2026-11-20T22:01:58.001010Z"


@pytest.mark.parametrize("rate", [-1.0, float("inf"), float("nan")])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="clock rate"):
        VirtualClock(rate)
    with pytest.raises(ValueError, match="clock rate"):
        VirtualClock().rate = rate


async def test_a_sleep_notices_a_change_of_rate() -> None:
    clock = VirtualClock(rate=0.001)
    sleepers = [asyncio.create_task(clock.sleep(virtual_s)) for virtual_s in (60, 120, 600)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in sleepers)
    clock.rate = 10_000
    await asyncio.wait_for(asyncio.gather(*sleepers), HANG_S)


async def test_a_stopped_clock_lets_nobody_wake() -> None:
    clock = VirtualClock(rate=0)
    sleeper = asyncio.create_task(clock.sleep(0.001))
    await asyncio.sleep(0.02)
    assert not sleeper.done()
    clock.rate = 1
    await asyncio.wait_for(sleeper, HANG_S)


async def test_a_jump_wakes_who_sleeps_in_order_and_each_at_its_own_time() -> None:
    clock = VirtualClock(rate=0, start=0)
    woken: list[tuple[str, float]] = []

    async def nap(name: str, *naps_s: float) -> None:
        for virtual_s in naps_s:
            await clock.sleep(virtual_s)
            woken.append((name, clock.now()))

    tasks = [
        asyncio.create_task(nap(*item)) for item in (("a", 30, 15, 15), ("b", 40), ("d", 30), ("c", 600))
    ]
    await asyncio.sleep(0)
    await clock.jump(60)
    # The first to wake at 30 sleeps on before the second has woken.
    assert woken == [("a", 30), ("d", 30), ("b", 40), ("a", 45), ("a", 60)]
    assert clock.now() == 60
    await clock.jump(540)
    assert woken[-1] == ("c", 600)
    assert all(task.done() for task in tasks)
    with pytest.raises(ValueError, match=r"clock jump -1.*virtual seconds$"):
        await clock.jump(-1)


def start(operations: Operations, outcome: JsonObject | Exception, undone: list[ApiError]) -> JsonObject:
    async def work() -> JsonObject:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return operations.longrunning(
        api="tpu",
        parent="projects/p/locations/z",
        metadata={"createTime": "now"},
        response_type="google.cloud.tpu.v2.Node",
        work=work,
        on_error=undone.append,
    )


async def test_a_longrunning_operation_ends_with_a_response() -> None:
    operations = Operations(World("p", "1", VirtualClock()))
    first = start(operations, {"name": "n"}, [])
    assert (first["done"], "response" in first) == (False, False)
    last = await operations.wait(first["name"])
    assert last["response"] == {"@type": "type.googleapis.com/google.cloud.tpu.v2.Node", "name": "n"}
    assert last["metadata"].keys() == {"createTime", "endTime"}
    assert operations.names("tpu", "projects/p/locations/z") == [first["name"]]
    assert operations.names("tpu", "projects/p") == [first["name"]]
    assert operations.names("tpu", "projects/p/locations/elsewhere") == []
    assert operations.names("run", "projects/p") == [], "another API's lists don't show it"


async def test_a_longrunning_operation_ends_with_an_error_after_cleaning_up() -> None:
    world = World("p", "1", VirtualClock())
    operations = Operations(world)
    undone: list[ApiError] = []
    error = ApiError(429, "RESOURCE_EXHAUSTED", "no capacity")
    last = await operations.wait(start(operations, error, undone)["name"])
    assert last["error"] == {"code": 8, "message": "no capacity"}
    assert "response" not in last
    assert (undone, world.mistakes) == ([error], [])
    with pytest.raises(ApiError, match="not found"):
        operations.get("operations/x")


async def test_a_wait_ends_without_the_operation() -> None:
    clock = VirtualClock(rate=0)
    operations = Operations(World("p", "1", clock))

    async def work() -> JsonObject:
        await clock.sleep(1)
        return {}

    first = operations.longrunning(api="tpu", parent="", metadata={}, response_type="x", work=work)
    assert (await operations.wait(first["name"], timeout_s=0.02))["done"] is False

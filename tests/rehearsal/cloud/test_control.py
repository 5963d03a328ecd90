"""The control socket and its client, with stand-ins for what is controlled."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rehearsal.cloud.control import Control, ControlError
from rehearsal.cloud.control_server import Controls, ControlServer, listening
from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.core.errors import JsonObject, not_found
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.faults import Faults
from rehearsal.cloud.door.requestlog import LoggedRequest, RequestLog
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.machines.pods import PodGuests
from rehearsal.cloud.services.container.control_planes import Clusters
from rehearsal.cloud.services.tpu.quotas import Quotas
from tests.limits import HANG_S


class Fleet:
    """Nodes that only remember what was done to them."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    async def preempt(self, node: str, notice: bool) -> None:
        if node == "none":
            raise not_found(node)
        self.done.append(("preempt", node, notice))

    async def maintain(self, node: str, ends: str) -> None:
        self.done.append(("maintain", node, ends))

    async def cut_power(self, host: str) -> None:
        self.done.append(("cut_power", host))

    def nodes_status(self) -> list[JsonObject]:
        return [{"name": "tpu-dev", "zone": "z", "state": "READY", "hosts": []}]

    def deletions(self) -> dict[str, int]:
        return {"PREEMPTED": 3}


class Socket:
    """A control server in a thread."""

    def __init__(self, path: Path) -> None:
        self.fleet = Fleet()
        self.clock = VirtualClock()
        self.requests = RequestLog()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self._start(path), self.loop).result(10)
        self.client = Control(path)

    async def _start(self, path: Path) -> None:
        faults = Faults(self.clock)
        self.quotas = Quotas()
        fleet: Any = self.fleet
        self.world = world = World("p", "1", self.clock)
        self.mistakes = world.mistakes
        iam = Iam(world, "owner@example.com")
        clusters, pods = Clusters(world, iam, faults), PodGuests(world, fleet)
        controls = Controls(world, iam, faults, self.requests, fleet, self.quotas, clusters, pods, list, str)
        server = ControlServer(controls)
        self.runner = web.AppRunner(server.app(), shutdown_timeout=1)
        await self.runner.setup()
        await web.SockSite(self.runner, listening(path)).start()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(HANG_S)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Socket]:
    control = Socket(tmp_path / "control.sock")
    yield control
    control.close()


def test_a_socket_that_can_be_seen_takes_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "control.sock"
    seen: list[bool] = []
    listen = socket.socket.listen

    def watched(self: socket.socket, backlog: int) -> None:
        seen.append(path.exists())
        listen(self, backlog)

    monkeypatch.setattr(socket.socket, "listen", watched)
    with listening(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert seen == [False]
    with listening(path), socket.socket(socket.AF_UNIX) as client:  # in the place of a dead cloud's
        client.connect(str(path))


def test_status_tells_of_everything(control: Socket) -> None:
    rule = control.client.add_fault({"what": {"reset": True}, "times": 1})
    control.mistakes.append("operation o: KeyError('zone')")
    status = control.client.status()
    parts = {"clock", "nodes", "control_planes", "deletions", "requests", "faults", "mistakes", "dropped"}
    assert status.keys() == parts
    assert status["mistakes"] == control.mistakes
    assert status["clock"]["rate"] == 1.0
    assert status["nodes"] == control.fleet.nodes_status()
    assert status["deletions"] == control.fleet.deletions()
    assert status["requests"] == {"validated": 0, "refused": 0, "methods": {}}
    assert [(item["id"], item["observed"]) for item in status["faults"]] == [(rule, 0)]
    assert control.client.faults() == status["faults"]


def test_nodes_are_preempted_and_hosts_pulled(control: Socket) -> None:
    control.client.preempt("tpu-dev", notice=True)
    control.client.cut_power("tpu-dev-w1")
    control.client.maintain("tpu-dev", ends="READY")
    done = [("preempt", "tpu-dev", True), ("cut_power", "tpu-dev-w1"), ("maintain", "tpu-dev", "READY")]
    assert control.fleet.done == done
    with pytest.raises(ControlError, match="'none' was not found"):
        control.client.preempt("none", notice=False)


def test_the_clock_is_set(control: Socket) -> None:
    control.client.set_clock(30)
    assert control.clock.rate == 30
    with pytest.raises(ControlError, match="clock rate -1"):
        control.client.set_clock(-1)
    control.client.set_clock(0)
    before = control.clock.now()
    control.client.jump(3600)
    assert control.clock.now() == before + 3600


def test_quotas_are_set(control: Socket) -> None:
    control.client.set_quota("TPUV6EPerProjectPerZoneForTPUAPI", "us-east5-b", 8)
    buckets = control.quotas.metrics("projects/1")[0]["consumerQuotaLimits"][1]["quotaBuckets"]
    assert {"effectiveLimit": "8", "dimensions": {"zone": "us-east5-b"}} in buckets
    with pytest.raises(ControlError, match="no quota 'TPU' in 'us-east5-b'"):
        control.client.set_quota("TPU", "us-east5-b", 8)


def test_snapshots_are_added(control: Socket, tmp_path: Path) -> None:
    image = tmp_path / "tokens.ext4"
    image.write_bytes(b"")
    control.client.add_snapshot("tokens", image, disk_size_gb=10)
    name = "projects/p/global/snapshots/tokens"
    assert control.world.images == {name: image}
    assert control.world.directory[name]["diskSizeGb"] == "10"


def test_requests_are_read_from_a_number_on(control: Socket) -> None:
    for n in range(3):
        entry = LoggedRequest("t", f"m{n}", "GET", "h", "/p", "a", "10.0.0.2", 200, "", "", 0.0)
        control.requests.add(entry, validated=True, refused=False)
    answer = control.client.requests(1)
    assert answer["next"] == 3
    assert [(request["n"], request["method_id"]) for request in answer["requests"]] == [(1, "m1"), (2, "m2")]


def test_a_wrong_rule_is_refused_with_its_reason(control: Socket) -> None:
    with pytest.raises(ControlError, match=r"what: \{\} must have exactly one of"):
        control.client.add_fault({})


def test_a_body_that_lacks_something_is_refused(control: Socket) -> None:
    with pytest.raises(ControlError, match="the body lacks 'node'"):
        control.client._call("POST", "/preempt", {})


def test_an_unknown_call_is_refused(control: Socket) -> None:
    with pytest.raises(ControlError, match="404"):
        control.client._call("GET", "/nothing")


def test_nobody_at_the_socket_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="no emulated cloud answers") as caught:
        Control(tmp_path / "none.sock").status()
    assert "tpu rehearsal status" in caught.value.fix

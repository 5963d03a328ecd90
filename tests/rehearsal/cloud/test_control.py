"""The control socket and its client."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cloud_front import PROJECT, CloudFront

from rehearsal.cloud.control import Control, ControlError
from rehearsal.cloud.control_server import listening
from rehearsal.cloud.door.requestlog import LoggedRequest


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


def test_status_has_every_part(cloud: CloudFront) -> None:
    rule = cloud.control.add_fault({"what": {"reset": True}, "match": {"host": "none"}})
    cloud.world.mistakes.append("operation o: KeyError('zone')")
    status = cloud.control.status()
    cloud.world.mistakes.clear()
    parts = {"clock", "nodes", "instances", "control_planes", "deletions", "requests", "faults", "mistakes"}
    assert status.keys() == {*parts, "dropped"}
    assert status["mistakes"] == ["operation o: KeyError('zone')"]
    assert status["clock"]["rate"] == cloud.world.clock.rate
    assert (status["nodes"], status["deletions"]) == ([], {})
    assert status["requests"] == cloud.requests.counts()
    assert [(item["id"], item["observed"]) for item in status["faults"]] == [(rule, 0)]
    assert cloud.control.faults() == status["faults"]


def test_nodes_are_preempted_and_hosts_pulled(cloud: CloudFront, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[object, ...]] = []

    def recorder(name: str) -> Callable[..., Coroutine[Any, Any, None]]:
        async def record(*arguments: object) -> None:
            done.append((name, *arguments))

        return record

    with pytest.raises(ControlError, match="'none' was not found"):
        cloud.control.preempt("none", notice=False)
    for name in ("preempt", "maintain"):
        monkeypatch.setattr(cloud.cloud.nodes, name, recorder(name))
    monkeypatch.setattr(cloud.cloud.machines, "pull", recorder("pull"))
    cloud.control.preempt("tpu-dev", notice=True)
    cloud.control.cut_power("tpu-dev-w1")
    cloud.control.maintain("tpu-dev", ends="READY")
    assert done == [
        ("preempt", "tpu-dev", True),
        ("pull", "tpu-dev-w1"),
        ("maintain", "tpu-dev", "READY"),
    ]


def test_the_clock_is_set(cloud: CloudFront) -> None:
    with cloud.stopped_clock():
        cloud.control.set_clock(30)
        assert cloud.world.clock.rate == 30
        with pytest.raises(ControlError, match="clock rate -1"):
            cloud.control.set_clock(-1)
        cloud.control.set_clock(0)
        before = cloud.world.clock.now()
        cloud.control.jump(3600)
        assert cloud.world.clock.now() == before + 3600


def test_quotas_are_set(cloud: CloudFront) -> None:
    cloud.control.set_quota("TPUV6EPerProjectPerZoneForTPUAPI", "us-east5-b", 8)
    buckets = cloud.cloud.quotas.metrics("projects/1")[0]["consumerQuotaLimits"][1]["quotaBuckets"]
    assert {"effectiveLimit": "8", "dimensions": {"zone": "us-east5-b"}} in buckets
    with pytest.raises(ControlError, match="no quota 'TPU' in 'us-east5-b'"):
        cloud.control.set_quota("TPU", "us-east5-b", 8)


def test_snapshots_are_added(cloud: CloudFront, tmp_path: Path) -> None:
    image = tmp_path / "tokens.ext4"
    image.write_bytes(b"")
    cloud.control.add_snapshot("tokens", image, disk_size_gb=10)
    name = f"projects/{PROJECT}/global/snapshots/tokens"
    assert cloud.world.images == {name: image}
    assert cloud.world.directory[name]["diskSizeGb"] == "10"


def test_requests_are_read_from_a_number_on(cloud: CloudFront) -> None:
    first = cloud.control.requests(0)["next"]
    for n in range(3):
        entry = LoggedRequest("t", f"m{n}", "GET", "h", "/p", "a", "10.0.0.2", 200, "", "", 0.0)
        cloud.requests.add(entry, validated=True, refused=False)
    answer = cloud.control.requests(first + 1)
    assert answer["next"] == first + 3
    logged = [(request["n"], request["method_id"]) for request in answer["requests"]]
    assert logged == [(first + 1, "m1"), (first + 2, "m2")]


def test_a_wrong_rule_is_refused_with_its_reason(cloud: CloudFront) -> None:
    with pytest.raises(ControlError, match=r"what: \{\} must have exactly one of"):
        cloud.control.add_fault({})


def test_nobody_at_the_socket_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="no emulated cloud answers") as caught:
        Control(tmp_path / "none.sock").status()
    assert "tpu rehearsal status" in caught.value.fix

"""The life of nodes: Google takes them away or repairs them, and changes collide."""

from __future__ import annotations

import asyncio

import pytest
from tpu_lab import DISK, ZONE, Lab, P, node_body, until

from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.services.tpu import nodes

HOSTS = [f"tpu-dev-w{k}" for k in range(4)]


def state(lab: Lab) -> str:
    return str(lab.tpu.status()[0]["state"])


# Taking away


async def test_preemption_with_notice(lab: Lab) -> None:
    await lab.ready()
    await lab.tpu.preempt("tpu-dev", notice=True)
    guest = lab.tpu.guest("10.128.0.3")
    assert guest is not None
    assert guest.preempted
    await until(lambda: state(lab) == "PREEMPTED")
    assert not any(event == "cut_power" for event, _ in lab.hosts.events)
    _, node = await lab.get()
    assert node["state"] == "PREEMPTED"
    await lab.finish(await lab.api("DELETE", "nodes/tpu-dev"))
    await lab.ready()
    again = lab.tpu.guest("10.128.0.3")
    assert again is not None
    assert not again.preempted


async def test_plug_is_pulled_when_the_notice_has_run_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "NOTICE_S", 0.3)
    lab.hosts.deaf = True
    await lab.ready()
    await lab.tpu.preempt("tpu-dev", notice=True)
    await asyncio.sleep(0.1)
    assert sorted(lab.hosts.on) == HOSTS
    await until(lambda: state(lab) == "PREEMPTED")
    assert lab.hosts.events[-4:] == [("cut_power", name) for name in HOSTS]


async def test_preemption_without_notice(lab: Lab) -> None:
    await lab.ready()
    await lab.tpu.preempt("tpu-dev", notice=False)
    await until(lambda: state(lab) == "PREEMPTED")
    assert not any(event == "power_off" for event, _ in lab.hosts.events)


async def test_only_spot_nodes_can_be_preempted(lab: Lab) -> None:
    await lab.ready(schedulingConfig=None)
    with pytest.raises(Exception, match="neither spot nor preemptible"):
        await lab.tpu.preempt("tpu-dev", notice=True)


async def test_only_nodes_that_run_can_be_preempted_and_once(lab: Lab) -> None:
    await lab.ready("ended")
    await lab.tpu.maintain("ended", "TERMINATED")
    await until(lambda: state(lab) == "TERMINATED")
    with pytest.raises(Exception, match="is TERMINATED"):
        await lab.tpu.preempt("ended", notice=False)
    await lab.finish(await lab.api("DELETE", "nodes/ended"))
    await lab.ready()
    await lab.tpu.preempt("tpu-dev", notice=False)
    with pytest.raises(Exception, match="being preempted"):
        await lab.tpu.preempt("tpu-dev", notice=False)
    await until(lambda: state(lab) == "PREEMPTED")
    with pytest.raises(Exception, match="is PREEMPTED"):
        await lab.tpu.preempt("tpu-dev", notice=False)


async def test_pulled_host_shows_in_status_and_health(lab: Lab) -> None:
    await lab.ready()
    await lab.cloud.machines.pull("tpu-dev-w2")
    _, node = await lab.get()
    assert (node["state"], node["health"]) == ("READY", "TIMEOUT")
    assert node["healthDescription"] == "Workers that do not respond: 2."
    (status,) = lab.tpu.status()
    assert [host["running"] for host in status["hosts"]] == [True, True, False, True]
    assert status["hosts"][2] == {"name": "tpu-dev-w2", "address": "10.128.0.4", "running": False}


# Maintenance


@pytest.mark.parametrize("ends", ["READY", "TERMINATED", "UNKNOWN"])
async def test_maintenance_switches_the_machines_off_in_order_until_it_ends(lab: Lab, ends: str) -> None:
    await lab.ready()
    lab.hosts.events.clear()
    await lab.tpu.maintain("tpu-dev", ends)
    _, node = await lab.get()
    assert (node["state"], node["health"]) == ("REPAIRING", "UNHEALTHY_MAINTENANCE")
    assert node["upcomingMaintenance"]["maintenanceStatus"] == "ONGOING"
    await until(lambda: state(lab) == ends)
    off, on = [("power_off", name) for name in HOSTS], [("boot", name) for name in HOSTS]
    assert lab.hosts.events == (off + on if ends == "READY" else off), "with the boot disks that they had"
    _, node = await lab.get()
    assert "upcomingMaintenance" not in node
    assert node.get("health") == ("HEALTHY" if ends == "READY" else None)


async def test_announced_maintenance_stops_nothing(lab: Lab) -> None:
    await lab.ready()
    await lab.tpu.maintain("tpu-dev", "PENDING")
    _, node = await lab.get()
    assert (node["state"], node["upcomingMaintenance"]["maintenanceStatus"]) == ("READY", "PENDING")
    assert sorted(lab.hosts.on) == HOSTS


@pytest.mark.parametrize("booting", [False, True])
async def test_a_node_can_be_deleted_while_it_is_repaired(lab: Lab, booting: bool) -> None:
    await lab.ready()
    lab.hosts.may_boot.clear()
    await lab.tpu.maintain("tpu-dev", "READY")
    (node,) = lab.tpu.all()
    if booting:
        await until(lambda: "upcomingMaintenance" not in node.body)
    deleting = await lab.api("DELETE", "nodes/tpu-dev")
    lab.hosts.may_boot.set()
    assert "error" not in await lab.finish(deleting)
    await lab.world.clock.jump(1000.0)
    assert (await lab.get())[0] == 404
    assert lab.hosts.on == {}
    assert lab.world.mistakes == []


@pytest.mark.parametrize(("ends", "why"), [("BETTER", "doesn't end in BETTER"), ("READY", "is PREEMPTED")])
async def test_maintenance_that_cannot_be_is_refused(lab: Lab, ends: str, why: str) -> None:
    await lab.ready()
    await lab.tpu.preempt("tpu-dev", notice=False)
    await until(lambda: state(lab) == "PREEMPTED")
    with pytest.raises(ApiError, match=why):
        await lab.tpu.maintain("tpu-dev", ends)


# Changes that collide

PATCH = ("PATCH", "nodes/tpu-dev?updateMask=labels,dataDisks")


@pytest.mark.parametrize(
    ("at_first", "second"),
    [
        ("READY", PATCH),
        ("READY", ("POST", "nodes/tpu-dev:stop")),
        ("STOPPED", ("POST", "nodes/tpu-dev:start")),
    ],
)
async def test_a_change_while_another_is_under_way_is_refused(
    lab: Lab, at_first: str, second: tuple[str, str]
) -> None:
    await lab.ready(acceleratorType="v6e-8")
    if at_first == "STOPPED":
        await lab.finish(await lab.api("POST", "nodes/tpu-dev:stop", {}))
    lab.world.clock.rate = 0.0
    first = await lab.api(*PATCH, node_body(labels={"a": "b"}))
    body = node_body() if second == PATCH else {}
    status, refused = await lab.api(*second, body)
    assert (status, refused["error"]["status"]) == (409, "ABORTED")
    assert refused["error"]["message"] == "unable to queue the operation"
    lab.world.clock.rate = 1000.0
    assert (await lab.finish(first))["response"]["labels"] == {"a": "b"}
    assert (await lab.api(*second, body))[0] == 200


async def test_a_patch_that_a_deletion_overtakes_changes_nothing(lab: Lab) -> None:
    await lab.ready()
    await lab.disk("second")
    second = f"{P}/zones/{ZONE}/disks/second"
    lab.world.clock.rate = 0.0
    disks = [{"mode": "READ_ONLY", "sourceDisk": second}]
    patching = await lab.api(*PATCH, node_body(dataDisks=disks))
    deleting = await lab.api("DELETE", "nodes/tpu-dev")
    status, refused = await lab.api(*PATCH, node_body())
    assert (status, "is DELETING and cannot be updated" in refused["error"]["message"]) == (400, True)
    lab.world.clock.rate = 1000.0
    assert "is DELETING" in (await lab.finish(patching))["error"]["message"]
    assert "error" not in await lab.finish(deleting)
    assert "users" not in lab.world.directory[second]
    assert "users" not in lab.world.directory[DISK]


async def test_a_patch_whose_disk_is_gone_changes_nothing(lab: Lab) -> None:
    await lab.ready()
    await lab.disk("second")
    second = f"{P}/zones/{ZONE}/disks/second"
    lab.world.clock.rate = 0.0
    disks = [{"mode": "READ_ONLY", "sourceDisk": second}]
    patching = await lab.api(*PATCH, node_body(dataDisks=disks, labels={"a": "b"}))
    del lab.world.directory[second]
    lab.world.clock.rate = 1000.0
    assert "was not found" in (await lab.finish(patching))["error"]["message"]
    _, node = await lab.get()
    assert (node["labels"], node["dataDisks"][0]["sourceDisk"]) == ({"env": "dev"}, DISK)
    assert (await lab.api(*PATCH, node_body()))[0] == 200, "the node can be changed again"

"""Instances with machines that only pretend: when they boot, what is refused, who may log in."""

from __future__ import annotations

from typing import Any

import pytest
from tpu_lab import ACCOUNT, SUBNETWORK, ZONE, Lab, P, until

DEBIAN = "projects/debian-cloud/global/images/family/debian-12"
COMPUTE = f"compute.googleapis.com/compute/v1/{P}/zones/{ZONE}"
ADA = "ada@example.com"


def body(name: str, image: str = DEBIAN, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/n2-standard-4",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": image}}],
        "networkInterfaces": [{"subnetwork": SUBNETWORK}],
        "serviceAccounts": [{"email": ACCOUNT, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}],
        **more,
    }


async def sent(lab: Lab, method: str, path: str, content: Any = None) -> Any:
    """Return the operation that a request started, once it is done."""
    status, operation = await lab.request(method, f"{COMPUTE}/{path}", content)
    assert status == 200, operation
    return await lab.operations.wait(
        operation["selfLink"].removeprefix("https://www.googleapis.com/compute/v1/")
    )


async def test_an_instance_of_debian_12_boots_and_one_of_another_image_has_states_only(lab: Lab) -> None:
    await sent(lab, "POST", "instances", body("ours"))
    await sent(lab, "POST", "instances", body("other", "projects/rocky-linux-cloud/global/images/rocky-9"))
    assert lab.hosts.on.keys() == {"ours"}
    _, shown = await lab.request("GET", f"{COMPUTE}/instances/ours")
    assert shown["serviceAccounts"] == body("ours")["serviceAccounts"]
    for verb, events in (("stop", [("power_off", "ours")]), ("start", [("boot", "ours")])):
        before = len(lab.hosts.events)
        await sent(lab, "POST", f"instances/ours/{verb}")
        assert lab.hosts.events[before:] == events
    await sent(lab, "DELETE", "instances/ours")
    assert lab.hosts.events[-1] == ("discard", "ours")


async def test_a_machine_that_does_not_boot_leaves_no_instance(lab: Lab) -> None:
    lab.hosts.broken.add("ours")
    done = await sent(lab, "POST", "instances", body("ours"))
    assert "did not boot" in done["error"]["errors"][0]["message"]
    assert (await lab.request("GET", f"{COMPUTE}/instances/ours"))[0] == 404
    assert lab.cloud.machines.members() == []


async def test_a_creation_that_google_fails_leaves_no_machine(lab: Lab) -> None:
    lab.faults.add(
        {
            "match": {"method": "compute.instances.insert"},
            "what": {"operation_error": {"code": "RESOURCE_EXHAUSTED", "message": "none left"}},
            "times": 1,
        }
    )
    done = await sent(lab, "POST", "instances", body("ours"))
    assert done["error"]["errors"][0]["message"] == "none left"
    await until(lambda: ("discard", "ours") in lab.hosts.events)
    assert lab.hosts.on == {}
    assert lab.cloud.machines.members() == []


async def test_a_machine_that_switches_itself_off_shows_its_instance_terminated(lab: Lab) -> None:
    await sent(lab, "POST", "instances", body("ours"))
    lab.hosts.on.pop("ours")
    assert (await lab.request("GET", f"{COMPUTE}/instances/ours"))[1]["status"] == "TERMINATED"
    await sent(lab, "POST", "instances/ours/start")
    assert "ours" in lab.hosts.on


@pytest.mark.parametrize(("restarts", "status"), [(True, "REPAIRING"), (False, "TERMINATED")])
async def test_a_pulled_plug_is_repaired_unless_the_instance_says_no(
    lab: Lab, restarts: bool, status: str
) -> None:
    await sent(lab, "POST", "instances", body("ours", scheduling={"automaticRestart": restarts}))
    lab.world.clock.rate = 0
    await lab.cloud.machines.pull("ours")
    assert (await lab.request("GET", f"{COMPUTE}/instances/ours"))[1]["status"] == status


async def test_instances_nodes_and_reservations_take_different_addresses(lab: Lab) -> None:
    await sent(lab, "POST", "instances", body("ours"))
    card = [{"subnetwork": SUBNETWORK, "networkIP": "10.128.0.2"}]
    status, refused = await lab.request("POST", f"{COMPUTE}/instances", body("two", networkInterfaces=card))
    assert (status, refused["error"]["errors"][0]["reason"]) == (400, "resourceInUseByAnotherResource")
    node = await lab.ready()
    addresses = [endpoint["ipAddress"] for endpoint in node["networkEndpoints"]]
    assert addresses == [f"10.128.0.{number}" for number in (3, 4, 5, 6)]


async def test_an_instances_parts_need_permissions_of_their_own(lab: Lab) -> None:
    lab.iam.set_policy(
        P, {"bindings": [{"role": "roles/compute.instanceAdmin.v1", "members": [f"user:{ADA}"]}]}
    )
    status, refused = await lab.request("POST", f"{COMPUTE}/instances", body("ours"), ADA)
    assert status == 403
    assert "iam.serviceAccounts.actAs" in refused["error"]["message"]

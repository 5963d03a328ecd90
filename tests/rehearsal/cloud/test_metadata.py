"""The metadata server, asked from the address of one of four machines and by Google's own client."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import google.auth.transport.requests
import pytest
from google.auth.compute_engine import Credentials, _metadata
from tpu_lab import ACCOUNT, FLAVOR, OWNER, Lab, Machine, P, node_body, open_machine

from rehearsal.cloud.services.tpu.node import LATE_KEYS
from tests.limits import HANG_S

V1 = "/computeMetadata/v1/"


def _knows_itself(lab: Lab, worker: int) -> bool:
    guest = lab.tpu.guest(f"10.128.0.{2 + worker}")
    return guest is not None and set(LATE_KEYS) <= guest.attributes.keys()


@pytest.fixture
async def machine(lab: Lab) -> AsyncIterator[Machine]:
    await lab.ready()
    async with asyncio.timeout(HANG_S):
        while not all(_knows_itself(lab, worker) for worker in range(4)):
            await lab.cloud.machines.changed()
    async with open_machine(lab) as opened:
        yield opened


VALUES = {
    "instance/attributes/agent-worker-number": "2",
    "instance/attributes/accelerator-type": "v6e-16",
    "instance/attributes/worker-network-endpoints": ",".join(
        f"unknown:unknown:10.128.0.{k}" for k in (2, 3, 4, 5)
    ),
    "instance/attributes/startup-script": "#!/bin/bash\n",
    "instance/attributes/tpu-slice": "tpu-dev",
    "instance/attributes/instance-id": "tpu-dev",
    "instance/zone": "projects/123456789012/zones/us-east5-b",
    "instance/machine-type": "projects/123456789012/machineTypes/ct6e-standard-4t",
    "instance/preempted": "FALSE",
    "instance/maintenance-event": "NONE",
    "instance/scheduling/preemptible": "TRUE",
    "instance/network-interfaces/0/ip": "10.128.0.4",
    "instance/network-interfaces/0/gateway": "10.128.0.1",
    "instance/network-interfaces/0/mtu": "8896",
    "instance/network-interfaces/0/mac": "42:01:0a:80:00:04",
    "instance/network-interfaces/0/subnetmask": "255.255.255.224",
    "instance/service-accounts/default/email": ACCOUNT,
    "instance/service-accounts/default/aliases": "default\n",
    f"instance/service-accounts/{ACCOUNT}/scopes": "https://www.googleapis.com/auth/cloud-platform\n",
    "project/project-id": "wire-test",
    "project/numeric-project-id": "123456789012",
    "universe/universe-domain": "googleapis.com",
}


async def test_values(machine: Machine) -> None:
    assert {path: await machine.text(path) for path in VALUES} == VALUES


async def test_tpu_env_as_jax_reads_it(machine: Machine) -> None:
    lines = (await machine.text("instance/attributes/tpu-env")).splitlines()
    values = {key.strip(): value.strip().strip("'") for key, value in (line.split(":", 1) for line in lines)}
    assert (values["WORKER_ID"], values["NODE_ID"], values["TOPOLOGY"]) == ("2", "tpu-dev", "4x4")


async def test_ids_of_machines_differ_and_have_nothing_of_their_nodes(machine: Machine) -> None:
    """Google says of neither how it follows from the node's id or name, so nothing here may follow."""
    _, node = await machine.lab.get()
    ids = set()
    for worker in range(4):
        machine.address = f"10.128.0.{2 + worker}"
        ids.add(await machine.text("instance/id"))
        name = await machine.text("instance/name")
        assert re.fullmatch(rf"t1v-n-[0-9a-f]{{8}}-w-{worker}", name)
        assert await machine.text("instance/hostname") == f"{name}.us-east5-b.c.wire-test.internal"
    assert len(ids) == 4
    assert all(abs(int(item) - int(node["id"])) > 10**6 for item in ids)
    await machine.lab.finish(await machine.lab.api("DELETE", "nodes/tpu-dev"))
    await machine.lab.ready()
    assert await machine.text("instance/id") not in ids


async def test_the_flavor_header_is_required_and_returned(machine: Machine) -> None:
    refused = await machine.get("instance/id", headers={})
    assert refused.status == 403
    assert "Missing Metadata-Flavor:Google header" in await refused.text()
    assert (await machine.get("instance/id")).headers["Metadata-Flavor"] == "Google"
    forwarded = await machine.get("instance/id", headers={**FLAVOR, "X-Forwarded-For": "10.0.0.1"})
    assert forwarded.status == 403
    root = await machine.get("/", headers={})
    assert (root.status, root.headers["Metadata-Flavor"]) == (200, "Google")


async def test_what_is_not_there_is_404_and_all_to_strangers(machine: Machine) -> None:
    for path in ("instance/nothing", "instance/id/deeper", "/other", "nothing/"):
        response = await machine.get(path)
        assert (response.status, "Error 404" in await response.text()) == (404, True), path
    machine.address = "10.128.0.20"
    assert (await machine.get("instance/service-accounts/default/token")).status == 404


async def test_folders_are_listed_with_a_slash_and_redirected_without(machine: Machine) -> None:
    assert (await machine.text("instance/network-interfaces/")) == "0/\n"
    assert "token\n" in await machine.text("instance/service-accounts/default/")
    response = await machine.get("instance?recursive=true")
    assert (response.status, response.headers["Location"]) == (301, f"{V1}instance/?recursive=true")


async def test_a_folder_as_json_is_in_camel_case_but_for_attributes_and_as_text_it_is_lines(
    machine: Machine,
) -> None:
    response = await machine.get("instance/?recursive=true")
    assert response.content_type == "application/json"
    instance = json.loads(await response.text())
    assert instance["networkInterfaces"][0]["ip"] == "10.128.0.4"
    assert instance["serviceAccounts"]["default"] == {
        "aliases": ["default"],
        "email": ACCOUNT,
        "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
    }
    assert instance["attributes"]["agent-worker-number"] == "2"
    assert isinstance(instance["id"], int)
    lines = (await machine.text("instance/scheduling/?recursive=true&alt=text")).splitlines()
    assert lines == ["automatic-restart FALSE", "on-host-maintenance TERMINATE", "preemptible TRUE"]
    assert json.loads(await machine.text("instance/tags?alt=json")) == []
    assert json.loads(await machine.text("instance/preempted?alt=json")) == "FALSE"


async def test_work_goes_on_when_tokens_end(machine: Machine) -> None:
    """The old one is refused, and Google's own client asks for a new one in time."""
    world, iam = machine.lab.world, machine.lab.iam
    ahead_s, real_s = 0.0, world.monotonic_s
    world.monotonic_s = lambda: real_s() + ahead_s
    url = f"tpu.googleapis.com/v2/{P}/locations/us-east5-b/nodes/tpu-dev"
    policy = iam.policy(P)
    viewer = {"role": "roles/tpu.viewer", "members": [f"serviceAccount:{ACCOUNT}"]}
    iam.set_policy(P, policy | {"bindings": [*policy["bindings"], viewer]})

    async def token() -> str:
        answer = json.loads(await machine.text("instance/service-accounts/default/token"))
        assert (answer["token_type"], 290 < answer["expires_in"] <= 3600) == ("Bearer", True)
        return str(answer["access_token"])

    first = await token()
    assert await machine.lab.status("GET", url, first) == 200
    ahead_s = 3600 - 310
    assert await token() == first, "more than five minutes are left of it"
    ahead_s = 3600 - 290
    second = await token()
    assert second != first
    assert await machine.lab.status("GET", url, first) == 200, "it is good to its end"
    ahead_s = 3601
    assert [await machine.lab.status("GET", url, item) for item in (first, second)] == [401, 200]


async def test_no_token_for_an_account_that_is_gone_or_foreign(machine: Machine) -> None:
    foreign = await machine.get(f"instance/service-accounts/{OWNER}/token")
    assert foreign.status == 404
    machine.lab.world.directory.pop(f"projects/wire-test/serviceAccounts/{ACCOUNT}")
    assert (await machine.get("instance/service-accounts/default/token")).status == 404


async def test_waiting_ends_when_the_node_is_preempted(machine: Machine) -> None:
    waiting = asyncio.create_task(machine.get("instance/preempted?wait_for_change=true"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await machine.lab.tpu.preempt("tpu-dev", notice=True)
    response = await asyncio.wait_for(waiting, HANG_S)
    assert await response.text() == "TRUE"


async def test_waiting_sleeps_through_other_changes_and_ends_with_its_own(machine: Machine) -> None:
    lab = machine.lab
    waiting = asyncio.create_task(machine.get("instance/attributes/tpu-run?wait_for_change=true"))
    assert (await waiting).status == 404  # an attribute that isn't there can't be waited for
    waiting = asyncio.create_task(machine.get("instance/attributes/?wait_for_change=true&recursive=true"))
    await asyncio.sleep(0.05)
    await lab.finish(await lab.api("PATCH", "nodes/tpu-dev?updateMask=labels", node_body(labels={"a": "b"})))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    body = node_body(metadata={"tpu-run": "train"})
    await lab.finish(await lab.api("PATCH", "nodes/tpu-dev?updateMask=metadata", body))
    response = await asyncio.wait_for(waiting, HANG_S)
    assert json.loads(await response.text())["tpu-run"] == "train"


async def test_waiting_with_an_old_etag_returns_at_once_and_with_the_newest_times_out(
    machine: Machine,
) -> None:
    first = await machine.get("instance/preempted")
    old = await machine.get("instance/preempted?wait_for_change=true&last_etag=0123456789abcdef")
    assert old.status == 200
    etag = first.headers["ETag"]
    path = f"instance/preempted?wait_for_change=true&timeout_sec=1&last_etag={etag}"
    same = await asyncio.wait_for(machine.get(path), HANG_S)
    assert (await same.text(), same.headers["ETag"]) == ("FALSE", etag)


async def test_googles_own_client_finds_account_project_and_token(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"{machine.client.host}:{machine.client.port}"
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", where)
    monkeypatch.setenv("GCE_METADATA_IP", where)

    def refreshed() -> tuple[Any, ...]:
        transport = google.auth.transport.requests.Request()
        credentials = Credentials()
        credentials.refresh(transport)
        account = credentials.service_account_email
        return _metadata.ping(transport), _metadata.get_project_id(transport), account, credentials.token

    result, project, account, token = await asyncio.to_thread(refreshed)
    assert (result, project, account) == (True, "wire-test", ACCOUNT)
    known = machine.lab.iam.find_token(token)
    assert known is not None
    assert known.principal == ACCOUNT


async def test_what_google_has_and_this_server_lacks_fails_the_rehearsal(machine: Machine) -> None:
    for path in ("instance/service-accounts/default/identity", "instance/disks/"):
        response = await machine.get(path)
        assert (response.status, (await response.text())[-16:]) == (501, "is not emulated.")
        counted = machine.lab.requests.counts()["methods"][f"metadata.computeMetadata/v1/{path.rstrip('/')}"]
        assert counted["refused"] == 1


async def test_a_fault_strikes_a_machines_request_and_is_logged(machine: Machine) -> None:
    method = "metadata.computeMetadata/v1/instance/service-accounts/default/token"
    rule = {"match": {"method": method, "principal": ACCOUNT}, "times": 1, "what": {"status": 503}}
    rule_id = machine.lab.faults.add(rule)
    statuses = [(await machine.get("instance/service-accounts/default/token")).status for _ in range(2)]
    assert statuses == [503, 200]
    (report,) = machine.lab.faults.report()
    assert (report["matched"], report["observed"]) == (2, 1)
    log = machine.lab.requests.since(0)["requests"]
    entries = [(item["reason"], item["status"]) for item in log if item["method_id"] == method]
    assert entries == [(rule_id, 503), ("", 200)]


async def test_maintenance_is_told(machine: Machine) -> None:
    async def notice() -> dict[str, str]:
        reported = json.loads(await machine.text("instance/upcoming-maintenance?alt=json"))
        assert isinstance(reported, dict)
        return reported

    assert await notice() == {"error": "no notifications have been received yet, try again later"}
    await machine.lab.tpu.maintain("tpu-dev", "PENDING")
    pending = await notice()
    assert (pending["maintenanceStatus"], pending["canReschedule"]) == ("PENDING", "TRUE")
    assert pending["maintenanceType"] == "SCHEDULED"
    assert await machine.text("instance/maintenance-event") == "NONE"
    machine.lab.world.clock.rate = 0.0
    waiting = asyncio.create_task(machine.lab.cloud.machines.changed())
    await asyncio.sleep(0)
    await machine.lab.tpu.maintain("tpu-dev", "READY")
    await waiting  # who waits for a change is told
    assert await machine.text("instance/maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE"
    assert (await notice())["maintenanceStatus"] == "ONGOING"

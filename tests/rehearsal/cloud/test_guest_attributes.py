"""Guest attributes: written through a machine's own metadata server alone, read through the TPU API."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tpu_lab import FLAVOR, OWNER, PROJECT, ZONE, Lab, Machine, node_body, open_machine
from yarl import URL

from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.machines.guestattributes import GuestAttributes

V1 = "/computeMetadata/v1/instance/guest-attributes/"
ENABLED = {"enable-guest-attributes": "TRUE"}
MINE = {"namespace": "tpu", "key": "job", "value": '{"state": "running"}'}


@pytest.fixture
async def machine(lab: Lab) -> AsyncIterator[Machine]:
    """Worker 2 of tpu-dev, beside whose four hosts there is the host of `other`."""
    await lab.ready(metadata=ENABLED)
    await lab.ready("other", acceleratorType="v6e-1", metadata=ENABLED)
    async with open_machine(lab) as opened:
        yield opened


def let_a_minute_pass(machine: Machine) -> None:
    """No query counts against a later one."""
    guest = machine.guest(machine.address)
    assert guest
    assert guest.guest_attributes
    guest.guest_attributes._queries.clear()


async def entries(lab: Lab, node: str = "tpu-dev", **body: Any) -> list[list[dict[str, str]]]:
    """The API's attributes, a list a worker, without those of Google's agent."""
    status, answer = await lab.api("POST", f"nodes/{node}:getGuestAttributes", body, version="v2")
    assert status == 200, answer
    return [
        [item for item in guest_attribute["queryValue"].get("items", ()) if item["namespace"] != "deviceInfo"]
        for guest_attribute in answer["guestAttributes"]
    ]


async def test_what_a_host_writes_is_told_of_its_own_node_and_worker(machine: Machine) -> None:
    assert (await machine.send("PUT", "tpu/job", MINE["value"]))[0] == 200
    assert await entries(machine.lab) == [[], [], [MINE], []]
    assert await entries(machine.lab, "other") == [[]]
    assert await entries(machine.lab, workerIds=["2"], queryPath="tpu/job") == [[MINE]]
    assert await entries(machine.lab, workerIds=["2", "0"], queryPath="/") == [[MINE], []]


async def test_no_host_writes_for_another(machine: Machine) -> None:
    """A request belongs to the machine with its address, whatever it claims."""
    forged = {"X-Forwarded-For": "10.128.0.6"}
    assert (await machine.send("PUT", "tpu/job", "x", **forged))[0] == 403
    assert (await machine.send("PUT", "tpu/job?worker=0&node=other", "x", Host="other"))[0] == 200
    assert (await machine.send("PUT", "../../other/tpu/job", "x"))[0] in (404, 405)
    assert await entries(machine.lab, "other") == [[]]
    assert [len(entry) for entry in await entries(machine.lab)] == [0, 0, 1, 0]
    machine.address = "10.128.0.20"  # of no node
    assert (await machine.send("PUT", "tpu/job", "x"))[0] == 404


async def test_a_host_reads_its_own_and_deletes(machine: Machine) -> None:
    await machine.send("PUT", "tpu/job", "one")
    await machine.send("PUT", "tpu/boot", "two")
    assert await machine.send("GET", "tpu/job") == (200, "one")
    let_a_minute_pass(machine)
    assert await machine.send("GET", "tpu/") == (200, "boot\njob\n")
    assert json.loads((await machine.send("GET", "tpu/?recursive=true"))[1]) == {"boot": "two", "job": "one"}
    assert (await machine.send("DELETE", "tpu/job"))[0] == 200
    let_a_minute_pass(machine)
    assert (await machine.send("DELETE", "tpu/job"))[0] == 404
    assert (await machine.send("GET", "tpu/job"))[0] == 404
    machine.address = "10.128.0.5"
    assert (await machine.send("GET", "tpu/boot"))[0] == 404


async def test_the_header_is_required_and_names_are_of_two_parts(machine: Machine) -> None:
    async with machine.client.put(V1 + "tpu/job", data="x") as response:
        assert response.status == 403
    for path in ("tpu", "tpu/a/b", ""):
        assert (await machine.send("PUT", path, "x"))[0] == 404
    assert (await machine.send("PUT", "tpu/j%20b", "x"))[0] == 400
    assert (await machine.send("POST", "tpu/job", "x"))[0] == 405
    async with machine.client.put("/computeMetadata/v1/instance/attributes/a", headers=FLAVOR) as response:
        assert response.status == 405, "what others set is not for the machine to write"


async def test_a_value_has_at_most_256_kib(machine: Machine) -> None:
    assert (await machine.send("PUT", "tpu/job", "x" * (256 << 10)))[0] == 200
    assert (await machine.send("PUT", "tpu/boot", "x" * ((256 << 10) + 1)))[0] == 400
    assert len((await entries(machine.lab, workerIds=["2"]))[0]) == 1


def test_too_many_queries_lose_what_is_being_written() -> None:
    now_s = [100.0]
    own = GuestAttributes("m", lambda: now_s[0])
    for n in range(3):
        own.write("tpu", "job", str(n))
    assert own.entry("tpu/job")["queryValue"]["items"][0]["value"] == "2"
    own.write("tpu", "job", "the fourth in a second")
    with pytest.raises(ApiError, match="The resource 'tpu/job' of type 'Guest Attribute' was not found"):
        own.entry("tpu/job")
    for n in range(6):
        now_s[0] += 2
        own.write("tpu", "job", str(n))
    assert own.read(["tpu", "job"]) == "5"  # the eleventh within a minute
    now_s[0] += 2
    own.write("tpu", "job", "the twelfth")
    assert own.entry("")["queryValue"] == {}
    now_s[0] += 60
    own.write("tpu", "job", "a minute later")
    assert own.read(["tpu", "job"]) == "a minute later"


async def test_they_are_disabled_unless_the_nodes_metadata_says_so(machine: Machine) -> None:
    await machine.send("PUT", "tpu/job", "x")
    body = node_body(metadata={"enable-guest-attributes": "FALSE"})
    lab = machine.lab
    await lab.finish(await lab.api("PATCH", "nodes/tpu-dev?updateMask=metadata", body))
    disabled = "Guest attributes endpoint access is disabled."
    assert await machine.send("PUT", "tpu/job", "x") == (403, disabled)
    assert await machine.send("GET", "tpu/job") == (403, disabled)
    status, answer = await lab.api("POST", "nodes/tpu-dev:getGuestAttributes", {})
    assert (status, answer["error"]["message"]) == (400, disabled)


async def test_a_new_node_of_the_same_name_has_said_nothing(machine: Machine) -> None:
    await machine.send("PUT", "tpu/boot", "x")
    lab = machine.lab
    await lab.finish(await lab.api("DELETE", "nodes/tpu-dev"))
    assert (await lab.api("POST", "nodes/tpu-dev:getGuestAttributes", {}))[0] == 404
    await lab.ready(metadata=ENABLED)
    assert await entries(lab) == [[], [], [], []]


async def test_googles_agent_names_each_machine(machine: Machine) -> None:
    status, answer = await machine.lab.api(
        "POST", "nodes/tpu-dev:getGuestAttributes", {"queryPath": "deviceInfo/hostname"}
    )
    assert status == 200
    names = [worker["queryValue"]["items"][0]["value"] for worker in answer["guestAttributes"]]
    assert [name.rpartition("-")[2] for name in names] == ["0", "1", "2", "3"]
    assert len(set(names)) == 4


async def test_what_is_not_there_is_404_in_googles_words(machine: Machine) -> None:
    status, answer = await machine.lab.api("POST", "nodes/nobody:getGuestAttributes", {})
    assert (status, answer["error"]["status"]) == (404, "NOT_FOUND")
    await machine.send("PUT", "tpu/job", "x")
    status, answer = await machine.lab.api("POST", "nodes/tpu-dev:getGuestAttributes", {"queryPath": "tpu/"})
    assert status == 404, "three of four workers have said nothing"
    assert answer["error"]["message"] == "The resource 'tpu/' of type 'Guest Attribute' was not found."
    for worker in ("4", "-1", "a"):
        status, answer = await machine.lab.api(
            "POST", "nodes/tpu-dev:getGuestAttributes", {"workerIds": [worker]}
        )
        assert (status, f'"{worker}"' in answer["error"]["message"]) == (400, True)


# Google's own client, which calls the API by a URL that holds its host name here


@pytest.fixture
async def endpoint(machine: Machine) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.StreamResponse:
        host, _, rest = request.raw_path.removeprefix("/").partition("/")
        return await machine.lab.door.handle(
            request.clone(rel_url=URL(f"/{rest}", encoded=True), headers={**request.headers, "Host": host})
        )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server:
        yield f"http://127.0.0.1:{server.port}/tpu.googleapis.com/"


@pytest.mark.prove
@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is in no package registry")
async def test_gcloud_reads_them(machine: Machine, endpoint: str, tmp_path: Path) -> None:
    await machine.send("PUT", "tpu/job", MINE["value"])
    (tmp_path / "token").write_text(machine.lab.iam.mint(OWNER).value)
    environment = {
        **os.environ,
        "CLOUDSDK_CONFIG": str(tmp_path),
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": endpoint,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
    }
    words = ["compute", "tpus", "tpu-vm", "get-guest-attributes", "tpu-dev", f"--zone={ZONE}"]
    words += [f"--project={PROJECT}", "--format=csv[no-heading](namespace,key,worker_id,value)"]
    gcloud = await asyncio.create_subprocess_exec(
        "gcloud", *words, stdout=-1, stderr=-1, stdin=asyncio.subprocess.DEVNULL, env=environment
    )
    out, output = await gcloud.communicate()
    assert gcloud.returncode == 0, output.decode()
    lines = out.decode().splitlines()
    assert [line.rpartition(",")[0] for line in lines if line.startswith("deviceInfo")] == [
        f"deviceInfo,hostname,{worker}" for worker in range(4)
    ]
    assert [line for line in lines if line.startswith("tpu")] == ['tpu,job,2,"{""state"": ""running""}"']

"""Nodes of the Cloud TPU API, behind the front door."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tpu_lab import DISK, NETWORK, REGION, SUBNETWORK, ZONE, Lab, P, node_body, until

from rehearsal.cloud.services.tpu import nodes
from rehearsal.cloud.services.tpu.node import LATE_KEYS

HOSTS = [f"tpu-dev-w{k}" for k in range(4)]


# Creating


async def test_machines_run_before_their_node_is_ready_and_before_they_know_who_they_are(lab: Lab) -> None:
    def known() -> list[set[str]]:
        guests = [lab.tpu.guest(f"10.128.0.{2 + worker}") for worker in range(4)]
        return [set(LATE_KEYS) & guest.attributes.keys() for guest in guests if guest]

    lab.world.clock.rate = 0.0
    started = await lab.create()
    await lab.world.clock.jump(nodes.Durations.create)
    await until(lambda: len(lab.hosts.on) == 4)
    _, node = await lab.get()
    assert (node["state"], "health" in node, sorted(lab.hosts.on)) == ("CREATING", False, HOSTS)
    assert known() == [set()] * 4
    seen: dict[str, int] = {}
    changed = 0
    for passed_s in range(1, 1 + round(nodes.Durations.attributes)):
        waiting = asyncio.create_task(lab.cloud.machines.changed())
        await asyncio.sleep(0)
        await lab.world.clock.jump(1.0)
        _, node = await lab.get()
        if node["state"] == "READY":
            seen.setdefault("READY", passed_s)
        for worker, keys in enumerate(known()):
            for key in keys:
                seen.setdefault(f"{key} {worker}", passed_s)
        changed += waiting.done()
        waiting.cancel()
    assert len(seen) == 1 + 4 * len(LATE_KEYS)
    assert len(set(seen.values())) > 4, "not all at one moment"
    assert changed == len({when for what, when in seen.items() if what != "READY"}), "who waits is told"
    lab.world.clock.rate = 1000.0
    response = (await lab.finish(started))["response"]
    assert (response["state"], response["health"]) == ("READY", "HEALTHY")


async def test_operation_tells_what_it_does(lab: Lab) -> None:
    _, operation = await lab.create()
    assert operation["done"] is False
    assert operation["metadata"]["target"] == f"tpu.googleapis.com/{P}/locations/{ZONE}/nodes/tpu-dev"
    assert operation["metadata"]["verb"] == "create"
    _, listed = await lab.api("GET", "operations")
    assert [item["name"] for item in listed["operations"]] == [operation["name"]]
    _, read = await lab.request("GET", f"tpu.googleapis.com/v2alpha1/{operation['name']}")
    assert read["name"] == operation["name"]


async def test_machines_get_addresses_disk_and_mtu(lab: Lab) -> None:
    node = await lab.ready()
    assert [network_endpoint["ipAddress"] for network_endpoint in node["networkEndpoints"]] == [
        f"10.128.0.{k}" for k in (2, 3, 4, 5)
    ]
    spec = lab.hosts.on["tpu-dev-w3"]
    assert (spec.address_cidr, spec.gateway, spec.mtu) == ("10.128.0.5/27", "10.128.0.1", 8896)
    assert (spec.node, spec.worker) == ("tpu-dev", 3)
    (disk,) = spec.disks
    assert (disk.device_name, disk.read_only) == ("persistent-disk-1", True)
    assert disk.image.read_bytes() == b"data"


async def test_reading_back_shows_what_was_sent(lab: Lab) -> None:
    sent = node_body(
        acceleratorType=None,
        acceleratorConfig={"type": "V6E", "topology": "4x4"},
        shieldedInstanceConfig={"enableSecureBoot": True},
        tags=["tpu"],
        description="a slice",
    )
    lab_answer = await lab.finish(await lab.api("POST", "nodes?nodeId=tpu-dev", sent))
    assert {key: lab_answer["response"][key] for key in sent} == sent
    assert lab_answer["response"]["acceleratorType"] == "v6e-16"


async def test_network_is_normalised(lab: Lab) -> None:
    link = f"https://www.googleapis.com/compute/v1/{NETWORK}"
    numbered = "projects/123456789012/global/networks/wire-net"
    for number, sent in enumerate(("wire-net", link, "global/networks/wire-net", numbered)):
        config = {"network": sent, "subnetwork": "wire-subnet"}
        node = await lab.ready(f"n{number}", acceleratorType="v6e-1", networkConfig=config)
        assert node["networkConfig"] == {"network": NETWORK, "subnetwork": SUBNETWORK}, sent


@pytest.mark.parametrize(
    ("kind", "topology", "hosts", "machine"),
    [
        ("v6e-1", "1x1", 1, "ct6e-standard-1t"),
        ("v6e-8", "2x4", 1, "ct6e-standard-8t"),
        ("v6e-64", "8x8", 16, "ct6e-standard-4t"),
    ],
)
async def test_size_decides_the_machines(
    lab: Lab, kind: str, topology: str, hosts: int, machine: str
) -> None:
    node = await lab.ready(acceleratorType=kind)
    assert node["acceleratorConfig"] == {"type": "V6E", "topology": topology}
    assert len(lab.hosts.on) == hosts
    guest = lab.tpu.guest("10.128.0.2")
    assert guest is not None
    assert guest.machine_type == machine


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"acceleratorType": "v6e-12"}, 400, 'invalid AcceleratorType, "v6e-12" for zone'),
    ({"acceleratorType": "v5e-16"}, 400, "invalid AcceleratorType"),
    (
        {"acceleratorType": None, "acceleratorConfig": {"type": "V6E", "topology": "8x4"}},
        400,
        "V6E with topology 8x4",
    ),
    ({"acceleratorConfig": {"type": "V6E", "topology": "4x4"}}, 400, "exactly one of"),
    ({"acceleratorType": None}, 400, "exactly one of"),
    ({"runtimeVersion": "tpu-ubuntu2204-base"}, 400, "is not one of v6e"),
    ({"runtimeVersion": None}, 400, "is not one of v6e"),
    ({"networkConfig": None}, 404, f"{P}/regions/{REGION}/subnetworks/default"),
    ({"networkConfig": {"network": "nowhere", "subnetwork": "wire-subnet"}}, 404, "networks/nowhere"),
    ({"networkConfig": {"network": NETWORK, "subnetwork": "gone"}}, 404, "subnetworks/gone"),
    ({"serviceAccount": {"email": f"gone@{P[9:]}.iam.gserviceaccount.com"}}, 404, "serviceAccounts/gone@"),
    ({"schedulingConfig": {"spot": True, "reserved": True}}, 400, "reserved and spot exclude each other"),
    ({"dataDisks": [{"mode": "READ_ONLY", "sourceDisk": DISK + "x"}]}, 404, "wire-data-mlx"),
    ({"dataDisks": [{"mode": "READ_WRITE", "sourceDisk": DISK}]}, 400, "READ_ONLY mode only"),
    ({"dataDisks": [{"sourceDisk": DISK}]}, 400, "READ_ONLY mode only"),
    ({"metadata": {"startup-script": "x" * (256 * 1024 + 1)}}, 400, "has 262145 bytes"),
    ({"metadata": {f"k{n}": "x" * 200_000 for n in range(3)}}, 400, "at most 524288"),
    ({"metadata": {"white space": ""}}, 400, "invalid metadata key"),
    ({"labels": {"Env": "dev"}}, 400, "invalid label"),
    ({"tags": ["Not_a_tag"]}, 400, "invalid network tag"),
    ({"description": "x" * 513}, 400, "must be 0 to 512 characters"),
    ({"acceleratorType": "v6e-256"}, 429, "IP_SPACE_EXHAUSTED"),
    ({"cidrBlock": "10.0.0.0/29"}, 501, "cidrBlock is not emulated"),
    ({"nonsense": 1}, 400, "Cannot find field"),
]


async def test_refusals_leave_nothing(lab: Lab) -> None:
    before = set(lab.world.directory)
    for more, status, message in REFUSED:
        answered, body = await lab.create(**more)
        assert (answered, message in body["error"]["message"]) == (status, True), body
    for node_id in ("", "Tpu", "1tpu", "tpu-", "t" * 64, "tpu_dev"):
        answered, body = await lab.create(node_id)
        assert (answered, "invalid nodeId" in body["error"]["message"]) == (400, True), body
    assert set(lab.world.directory) == before
    assert await lab.users(DISK) == []


async def test_a_zone_without_v6e_is_refused(lab: Lab) -> None:
    url = f"tpu.googleapis.com/v2/{P}/locations/us-east5-c/nodes?nodeId=tpu-dev"
    status, body = await lab.request("POST", url, node_body(dataDisks=None))
    assert status == 400
    assert 'for zone "us-east5-c"' in body["error"]["message"]


async def test_subnet_is_in_the_region_and_has_private_access_or_external_addresses(lab: Lab) -> None:
    await lab.subnet("far", "10.9.0.0/24", "us-central1", privateIpGoogleAccess=True)
    far = f"{P}/regions/us-central1/subnetworks/far"
    status, body = await lab.create(networkConfig={"network": NETWORK, "subnetwork": far})
    assert (status, "is not in region us-east5" in body["error"]["message"]) == (400, True)
    await lab.subnet("shut", "10.10.0.0/24")
    config = {"network": NETWORK, "subnetwork": "shut"}
    status, body = await lab.create(networkConfig=config)
    assert (status, "Private Google Access" in body["error"]["message"]) == (400, True)
    node = await lab.ready(networkConfig={**config, "enableExternalIps": True})
    external = [item["accessConfig"]["externalIp"] for item in node["networkEndpoints"]]
    assert external == [f"203.0.113.{k}" for k in (1, 2, 3, 4)]


async def test_unfit_disks_are_refused(lab: Lab) -> None:
    for name, disk, message in (
        ("far", {"zone": "us-central1-b"}, "is not in the node's zone"),
        ("slow", {"kind": "pd-balanced"}, "is of type pd-balanced"),
        ("single", {"accessMode": "READ_WRITE_SINGLE"}, "many hosts need READ_ONLY_MANY"),
    ):
        await lab.disk(name, **disk)
        full_name = f"{P}/zones/{disk.get('zone', ZONE)}/disks/{name}"
        status, body = await lab.create(dataDisks=[{"mode": "READ_ONLY", "sourceDisk": full_name}])
        assert (status, message in body["error"]["message"]) == (400, True), body


async def test_second_node_gets_the_next_addresses_and_the_same_name_is_refused(lab: Lab) -> None:
    await lab.ready()
    other = await lab.ready("tpu-two")
    assert other["networkEndpoints"][0]["ipAddress"] == "10.128.0.6"
    status, body = await lab.create()
    assert (status, body["error"]["status"]) == (409, "ALREADY_EXISTS")


async def test_nodes_fill_a_subnet_to_its_last_free_address(lab: Lab) -> None:
    for kind in ("v6e-64", "v6e-32", "v6e-16"):  # 16, 8 and 4 machines, in a range of 32 addresses
        await lab.ready(kind, acceleratorType=kind)
    status, body = await lab.create("more", acceleratorType="v6e-1")
    assert (status, "IP_SPACE_EXHAUSTED" in body["error"]["message"]) == (429, True)


async def test_stock_out_ends_the_operation_and_leaves_no_node(lab: Lab) -> None:
    text = f'There is no more capacity in the zone "{ZONE}"; you can try in another zone'
    lab.faults.add(
        {
            "match": {"method": "tpu.*.nodes.create"},
            "times": 1,
            "what": {"operation_error": {"code": 8, "message": text}},
        }
    )
    done = await lab.finish(await lab.create())
    assert done["error"] == {"code": 8, "message": text}
    assert (await lab.get())[0] == 404
    assert await lab.users(DISK) == []
    await lab.ready()


async def test_machine_that_does_not_boot_fails_the_creation(lab: Lab) -> None:
    lab.hosts.broken = {"tpu-dev-w2"}
    done = await lab.finish(await lab.create())
    assert "tpu-dev-w2 did not boot" in done["error"]["message"]
    assert (await lab.get())[0] == 404
    await until(lambda: not lab.hosts.on)


# Changing


async def test_patch_changes_what_the_mask_names_and_nothing_else(lab: Lab) -> None:
    await lab.ready()
    changed = {"labels": {"env": "prod"}, "description": "new", "metadata": {"a": "b"}}
    done = await lab.finish(
        await lab.api("PATCH", "nodes/tpu-dev?updateMask=labels,description", node_body(**changed))
    )
    node = done["response"]
    assert (node["labels"], node["description"]) == ({"env": "prod"}, "new")
    assert node["metadata"]["tpu-slice"] == "tpu-dev"


async def test_patch_can_clear_and_attach(lab: Lab) -> None:
    await lab.ready()
    await lab.disk("second")
    second = f"{P}/zones/{ZONE}/disks/second"
    body = node_body(labels=None, dataDisks=[{"mode": "READ_ONLY", "sourceDisk": second}])
    done = await lab.finish(await lab.api("PATCH", "nodes/tpu-dev?updateMask=labels,dataDisks", body))
    assert "labels" not in done["response"]
    assert await lab.users(DISK) == []
    assert (await lab.users(second))[0].endswith("/nodes/tpu-dev")


async def test_patch_of_anything_else_is_refused(lab: Lab) -> None:
    await lab.ready()
    for mask in ("", "runtimeVersion", "labels,acceleratorType"):
        status, body = await lab.api("PATCH", f"nodes/tpu-dev?updateMask={mask}", node_body())
        assert (status, "update mask" in body["error"]["message"]) == (400, True), mask


async def test_delete_switches_off_in_order_and_removes(lab: Lab) -> None:
    await lab.ready()
    started = await lab.api("DELETE", "nodes/tpu-dev")
    assert (await lab.get())[1]["state"] == "DELETING"
    done = await lab.finish(started)
    assert done["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}
    assert (await lab.get())[0] == 404
    assert lab.hosts.events[-8:] == [("power_off", name) for name in HOSTS] + [
        ("discard", name) for name in HOSTS
    ]
    assert await lab.users(DISK) == []


async def test_delete_while_creating_wins(lab: Lab) -> None:
    lab.world.clock.rate = 100
    creating = await lab.create()
    deleting = await lab.api("DELETE", "nodes/tpu-dev")
    assert "error" not in await lab.finish(deleting)
    assert "error" in await lab.finish(creating)
    assert (await lab.get())[0] == 404
    assert lab.hosts.on == {}


async def test_delete_while_machines_boot_wins(lab: Lab) -> None:
    lab.hosts.may_boot.clear()
    creating = await lab.create()
    await asyncio.sleep(0.2)  # 60 virtual seconds and more: its machines are on their way
    deleting = await lab.api("DELETE", "nodes/tpu-dev")
    lab.hosts.may_boot.set()
    assert "DELETING" in (await lab.finish(creating))["error"]["message"]
    assert "error" not in await lab.finish(deleting)
    assert (await lab.get())[0] == 404
    assert lab.hosts.on == {}


async def test_a_creation_that_breaks_in_our_code_leaves_no_node(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(spec: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(lab.hosts, "boot", broken)
    done = await lab.finish(await lab.create())
    assert done["error"] == {"code": 13, "message": "Internal error encountered."}
    assert (await lab.get())[0] == 404
    assert "no space left" in lab.world.mistakes.pop()


async def test_disk_and_network_in_use_cannot_be_deleted(lab: Lab) -> None:
    node = (await lab.ready())["name"]
    for path in (DISK, SUBNETWORK):
        status, body = await lab.request("DELETE", f"compute.googleapis.com/compute/v1/{path}")
        assert (status, f"already being used by '{node}'" in body["error"]["message"]) == (400, True)


async def test_stop_and_start_of_a_single_host(lab: Lab) -> None:
    await lab.ready(acceleratorType="v6e-8")
    stopped = await lab.finish(await lab.api("POST", "nodes/tpu-dev:stop", {}))
    assert stopped["response"]["state"] == "STOPPED"
    assert lab.hosts.on == {}
    started = await lab.finish(await lab.api("POST", "nodes/tpu-dev:start", {}))
    assert started["response"]["state"] == "READY"
    assert ("discard", "tpu-dev-w0") not in lab.hosts.events


async def test_a_pod_cannot_be_stopped(lab: Lab) -> None:
    await lab.ready()
    status, body = await lab.api("POST", "nodes/tpu-dev:stop", {})
    assert (status, "not supported for TPU pods" in body["error"]["message"]) == (400, True)


# Looking up


@pytest.mark.parametrize("version", ["v2", "v2alpha1"])
async def test_catalog(lab: Lab, version: str) -> None:
    _, types = await lab.api("GET", "acceleratorTypes", version=version)
    assert {"v6e-1", "v6e-256"} < {item["type"] for item in types["acceleratorTypes"]}
    _, entry = await lab.api("GET", "acceleratorTypes/v6e-16", version=version)
    assert entry["acceleratorConfigs"] == [{"type": "V6E", "topology": "4x4"}]
    _, versions = await lab.api("GET", "runtimeVersions", version=version)
    assert versions["runtimeVersions"][0]["version"] == "v2-alpha-tpuv6e"
    _, locations = await lab.request("GET", f"tpu.googleapis.com/{version}/{P}/locations")
    assert [item["locationId"] for item in locations["locations"]] == ["us-central1-b", ZONE]
    assert (await lab.api("GET", "acceleratorTypes/v6e-12", version=version))[0] == 404
    assert (await lab.api("GET", "reservations"))[0] == 501


async def test_nodes_are_listed_by_page_and_over_all_zones(lab: Lab) -> None:
    for node_id in ("a", "b", "c"):
        await lab.ready(node_id, acceleratorType="v6e-1")
    _, first = await lab.api("GET", "nodes?pageSize=2")
    _, rest = await lab.api("GET", f"nodes?pageSize=2&pageToken={first['nextPageToken']}")
    names = [node["name"].rsplit("/", 1)[-1] for node in first["nodes"] + rest["nodes"]]
    assert names == ["a", "b", "c"]
    assert "nextPageToken" not in rest
    _, everywhere = await lab.request("GET", f"tpu.googleapis.com/v2/{P}/locations/-/nodes")
    assert len(everywhere["nodes"]) == 3
    assert (await lab.api("GET", "nodes?pageToken=second"))[0] == 400


async def test_two_networks_with_one_range_cannot_both_have_nodes(lab: Lab) -> None:
    await lab.ready()
    await lab.compute("networks", {}, {"name": "other", "autoCreateSubnetworks": False})
    other = NETWORK.replace("wire-net", "other")
    await lab.subnet("same", "10.128.0.0/20", network=other, privateIpGoogleAccess=True)
    same = {"network": other, "subnetwork": SUBNETWORK.replace("wire-subnet", "same")}
    status, body = await lab.create("tpu-two", networkConfig=same)
    assert (status, "overlap" in body["error"]["message"]) == (501, True)

"""Networks, routers, firewalls, disks and snapshots behind the front door."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from cloud_front import NUMBER, PROJECT, CloudFront

from rehearsal.cloud.services.compute.disks import add_snapshot

_numbers = itertools.count()
REGION, ZONE = "us-east5", "us-east5-b"


def fresh(kind: str) -> str:
    return f"{kind}-{next(_numbers)}"


def make_network(cloud: CloudFront, **more: Any) -> str:
    name = fresh("net")
    body = {"name": name, "autoCreateSubnetworks": False, "mtu": 8896, **more}
    cloud.done(cloud.compute("POST", "global/networks", body))
    return name


def subnet_body(name: str, network: str, cidr: str = "10.0.0.0/20", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "network": f"projects/{PROJECT}/global/networks/{network}",
        "ipCidrRange": cidr,
        **more,
    }


def make_subnet(
    cloud: CloudFront, network: str, cidr: str = "10.0.0.0/20", region: str = REGION, **more: Any
) -> str:
    name = fresh("subnet")
    reply = cloud.compute("POST", f"regions/{region}/subnetworks", subnet_body(name, network, cidr, **more))
    assert "error" not in cloud.done(reply)
    return name


@pytest.fixture
def snapshot(cloud: CloudFront, tmp_path: Path) -> str:
    image = tmp_path / "image.ext4"
    image.write_bytes(b"data")
    name = fresh("snap")
    add_snapshot(cloud.world, name, image, 50)
    return name


def disk_body(name: str, snapshot: str | None, **more: Any) -> dict[str, Any]:
    source = {"sourceSnapshot": f"projects/{PROJECT}/global/snapshots/{snapshot}"} if snapshot else {}
    return {
        "name": name,
        "type": f"projects/{PROJECT}/zones/{ZONE}/diskTypes/hyperdisk-ml",
        "zone": f"projects/{PROJECT}/global/zones/{ZONE}",
        "sizeGb": 1000,
        "provisionedThroughput": 2400,
        "accessMode": "READ_ONLY_MANY",
        **source,
        **more,
    }


def make_disk(cloud: CloudFront, snapshot: str | None, **more: Any) -> str:
    name = fresh("disk")
    cloud.done(cloud.compute("POST", f"zones/{ZONE}/disks", disk_body(name, snapshot, **more)))
    return name


def test_an_operation_goes_through_its_states_and_names_its_target(cloud: CloudFront) -> None:
    name = fresh("net")
    started = cloud.compute("POST", "global/networks", {"name": name, "autoCreateSubnetworks": False}).json
    assert started["status"] == "PENDING"
    assert started["kind"] == "compute#operation"
    link = f"https://www.googleapis.com/compute/beta/projects/{PROJECT}/global"
    assert started["targetLink"] == f"{link}/networks/{name}"
    assert started["selfLink"] == f"{link}/operations/{started['name']}"
    done = cloud.compute("POST", f"global/operations/{started['name']}/wait").json
    assert (done["status"], done["progress"]) == ("DONE", 100)
    assert started["insertTime"] < done["startTime"] < done["endTime"]


def test_regional_and_zonal_operations_say_where_they_are(cloud: CloudFront, snapshot: str) -> None:
    network = make_network(cloud)
    body = subnet_body(fresh("subnet"), network)
    regional = cloud.compute("POST", f"regions/{REGION}/subnetworks", body).json
    assert regional["region"].endswith(f"/regions/{REGION}")
    zonal = cloud.compute("POST", f"zones/{ZONE}/disks", disk_body(fresh("disk"), snapshot)).json
    assert zonal["zone"].endswith(f"/zones/{ZONE}")
    assert cloud.compute("GET", f"zones/{ZONE}/operations/{zonal['name']}").status == 200
    assert cloud.compute("GET", f"global/operations/{zonal['name']}").status == 404


def test_a_network_reads_back_as_google_shows_it(cloud: CloudFront) -> None:
    name = make_network(cloud)
    subnet = make_subnet(cloud, name)
    body = cloud.compute("GET", f"global/networks/{name}").json
    assert body["mtu"] == 8896
    assert body["routingConfig"] == {"routingMode": "REGIONAL", "bgpBestPathSelectionMode": "LEGACY"}
    link = "https://www.googleapis.com/compute/beta/projects/wire-test"
    assert body["selfLink"] == f"{link}/global/networks/{name}"
    assert body["subnetworks"] == [f"{link}/regions/{REGION}/subnetworks/{subnet}"]
    assert body["id"].isdigit()
    v1 = cloud.request(
        "GET", f"compute.googleapis.com/compute/v1/projects/{PROJECT}/global/networks/{name}"
    ).json
    assert v1["selfLink"] == body["selfLink"].replace("/beta/", "/v1/")


def test_names_are_taken_once_and_others_not_found_in_computes_words(cloud: CloudFront) -> None:
    name, networks = make_network(cloud), f"projects/{PROJECT}/global/networks"
    again = cloud.compute("POST", "global/networks", {"name": name, "autoCreateSubnetworks": False})
    assert (again.status, again.reason) == (409, "alreadyExists")
    assert again.error == f"The resource '{networks}/{name}' already exists"
    missing = cloud.compute("GET", "global/networks/nowhere")
    assert (missing.status, missing.error) == (404, f"The resource '{networks}/nowhere' was not found")


def test_another_project_is_not_found(cloud: CloudFront) -> None:
    for path in ("global/networks", "global/networks/n", "regions", ""):
        url = f"compute.googleapis.com/compute/v1/projects/another/{path}".rstrip("/")
        reply = cloud.request("GET", url)
        assert (reply.status, "projects/another" in reply.error) == (404, True)
    assert cloud.request("GET", f"compute.googleapis.com/compute/v1/projects/{NUMBER}/regions").status == 200


@pytest.mark.parametrize("mtu", [1299, 8897, 9000])
def test_mtu_has_limits(cloud: CloudFront, mtu: int) -> None:
    body = {"name": fresh("net"), "autoCreateSubnetworks": False, "mtu": mtu}
    assert "Must be between 1300 and 8896" in cloud.compute("POST", "global/networks", body).error


def test_a_network_takes_another_mtu_with_a_null_in_place_of_a_fingerprint(cloud: CloudFront) -> None:
    """As the official provider sends it, which has read none: a network of this version has none."""
    name = fresh("net")
    cloud.done(cloud.compute("POST", "global/networks", {"name": name, "autoCreateSubnetworks": False}))
    cloud.done(cloud.compute("PATCH", f"global/networks/{name}", {"fingerprint": None, "mtu": 8896}))
    assert cloud.compute("GET", f"global/networks/{name}").json["mtu"] == 8896


def test_a_network_with_something_in_it_stays(cloud: CloudFront) -> None:
    name = make_network(cloud)
    subnet = make_subnet(cloud, name)
    reply = cloud.compute("DELETE", f"global/networks/{name}")
    assert reply.status == 400
    assert reply.error == (
        f"The network resource 'projects/{PROJECT}/global/networks/{name}' is already being used by "
        f"'projects/{PROJECT}/regions/{REGION}/subnetworks/{subnet}'"
    )
    assert reply.reason == "resourceInUseByAnotherResource"
    cloud.done(cloud.compute("DELETE", f"regions/{REGION}/subnetworks/{subnet}"))
    cloud.done(cloud.compute("DELETE", f"global/networks/{name}"))
    assert cloud.compute("GET", f"global/networks/{name}").status == 404


def test_who_does_not_wait_for_an_operation_is_told_so(cloud: CloudFront) -> None:
    network = fresh("net")
    with cloud.stopped_clock():
        first = cloud.compute("POST", "global/networks", {"name": network, "autoCreateSubnetworks": False})
        reply = cloud.compute("POST", f"regions/{REGION}/subnetworks", subnet_body(fresh("subnet"), network))
        assert reply.status == 400
        assert reply.error == f"The resource 'projects/{PROJECT}/global/networks/{network}' is not ready"
        assert cloud.compute("DELETE", f"global/networks/{network}").status == 400
    cloud.done(first)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": f"projects/{PROJECT}/global/networks/none"}, "networks/none' was not found"),
        ({"network": "net"}, "The URL is malformed"),
        ({"ipCidrRange": "10.0.0.1/20"}, "has host bits set"),
        ({"ipCidrRange": "10.0.0.0/30"}, "prefix length must be at most 29"),
        ({"region": f"projects/{PROJECT}/global/regions/us-central1"}, "Cross-region"),
    ],
)
def test_subnetworks_are_checked(cloud: CloudFront, change: dict[str, str], message: str) -> None:
    body = subnet_body(fresh("subnet"), make_network(cloud)) | change
    assert message in cloud.compute("POST", f"regions/{REGION}/subnetworks", body).error


def test_an_unknown_region_or_zone_is_refused(cloud: CloudFront) -> None:
    reply = cloud.compute("POST", "regions/mars-1/subnetworks", subnet_body("s", make_network(cloud)))
    assert reply.error == "Invalid value for field 'region': 'mars-1'. Unknown region."
    reply = cloud.compute("POST", "zones/mars-1-a/disks", disk_body("d", None))
    assert reply.error == "Invalid value for field 'zone': 'mars-1-a'. Unknown zone."


def test_overlapping_ranges_fail_in_the_operation_and_leave_nothing(cloud: CloudFront) -> None:
    network = make_network(cloud)
    first = make_subnet(
        cloud, network, secondaryIpRanges=[{"rangeName": "pods", "ipCidrRange": "10.8.0.0/14"}]
    )
    for cidr, region in (("10.0.8.0/22", REGION), ("10.9.0.0/20", "us-central1")):
        name = fresh("subnet")
        done = cloud.done(
            cloud.compute("POST", f"regions/{region}/subnetworks", subnet_body(name, network, cidr))
        )
        message = done["error"]["errors"][0]["message"]
        assert message == (
            f"Invalid IPCidrRange: {cidr} conflicts with existing subnetwork '{first}' in region '{REGION}'."
        )
        assert cloud.compute("GET", f"regions/{region}/subnetworks/{name}").status == 404
    make_subnet(cloud, make_network(cloud))  # the same range in another network


def test_a_subnetwork_changes_only_with_its_fingerprint(cloud: CloudFront) -> None:
    name = make_subnet(cloud, make_network(cloud), privateIpGoogleAccess=True)
    path = f"regions/{REGION}/subnetworks/{name}"
    before = cloud.compute("GET", path).json
    assert (before["gatewayAddress"], before["enableFlowLogs"]) == ("10.0.0.1", False)
    log = {"enable": True, "flowSampling": 0.5}
    assert cloud.compute("PATCH", path, {"logConfig": log}).error.endswith("not specified")
    assert cloud.compute("PATCH", path, {"logConfig": log, "fingerprint": "AAAA"}).status == 412
    cloud.done(cloud.compute("PATCH", path, {"logConfig": log, "fingerprint": before["fingerprint"]}))
    after = cloud.compute("GET", path).json
    assert (after["logConfig"], after["enableFlowLogs"]) == (log, True)
    assert after["fingerprint"] != before["fingerprint"]
    cloud.done(cloud.compute("POST", f"{path}/setPrivateIpGoogleAccess", {"privateIpGoogleAccess": False}))
    cloud.done(cloud.compute("POST", f"{path}/expandIpCidrRange", {"ipCidrRange": "10.0.0.0/16"}))
    assert (
        "must contain"
        in cloud.compute("POST", f"{path}/expandIpCidrRange", {"ipCidrRange": "10.0.0.0/18"}).error
    )
    last = cloud.compute("GET", path).json
    assert (last["privateIpGoogleAccess"], last["ipCidrRange"]) == (False, "10.0.0.0/16")


@pytest.mark.parametrize(("ranges", "message"), [
    ({"pods": "10.12.0.0/20", "services": "10.9.0.0/20"},
     "'resource.secondaryIpRanges[0].ipCidrRange': '10.12.0.0/20'. Existing secondary range cannot be mod"),
    ({"jobs": "10.12.0.0/20", "services": "10.9.0.0/20"},
     "in the same request. Added ranges: [10.12.0.0/20]. Removed ranges: [10.8.0.0/20]."),
    ({"pods": "10.8.0.0/20", "services": "10.9.0.0/20", "jobs": "10.12.0.0/20"}, ""),
    ({"pods": "10.8.0.0/20"}, ""),
])  # fmt: skip
def test_a_secondary_range_comes_or_goes_and_never_changes(
    cloud: CloudFront, ranges: dict[str, str], message: str
) -> None:
    def listed(items: dict[str, str]) -> list[dict[str, str]]:
        return [{"rangeName": name, "ipCidrRange": cidr} for name, cidr in items.items()]

    network = make_network(cloud)
    name = make_subnet(
        cloud, network, secondaryIpRanges=listed({"pods": "10.8.0.0/20", "services": "10.9.0.0/20"})
    )
    path = f"regions/{REGION}/subnetworks/{name}"
    change = {
        "secondaryIpRanges": listed(ranges),
        "fingerprint": cloud.compute("GET", path).json["fingerprint"],
    }
    reply = cloud.compute("PATCH", path, change)
    assert reply.status == (400 if message else 200), reply.body
    if message:
        assert message in reply.error
    else:
        cloud.done(reply)
        assert cloud.compute("GET", path).json["secondaryIpRanges"] == listed(ranges)


def test_a_range_has_all_but_its_first_and_last_two_addresses(cloud: CloudFront) -> None:
    subnet = f"regions/{REGION}/subnetworks/{make_subnet(cloud, make_network(cloud), '10.0.0.0/29')}"
    names = [fresh("address") for _ in range(5)]
    replies = []
    for name in names:
        body = {"name": name, "addressType": "INTERNAL", "subnetwork": subnet}
        replies.append(cloud.compute("POST", f"regions/{REGION}/addresses", body))
    assert [reply.status for reply in replies] == [200] * 4 + [403]
    assert replies[-1].error == "IP_SPACE_EXHAUSTED: the IP space of 10.0.0.0/29 is exhausted."
    given = [cloud.compute("GET", f"regions/{REGION}/addresses/{name}").json["address"] for name in names[:4]]
    assert given == [f"10.0.0.{n}" for n in (2, 3, 4, 5)]


def test_nats_are_written_into_their_router(cloud: CloudFront) -> None:
    network, name = make_network(cloud), fresh("router")
    body = {
        "name": name,
        "network": f"global/networks/{network}",
        "region": f"projects/{PROJECT}/regions/{REGION}",
    }
    cloud.done(cloud.compute("POST", f"regions/{REGION}/routers", body))
    path = f"regions/{REGION}/routers/{name}"
    nat = {"name": "nat", "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES", "natIps": []}
    cloud.done(cloud.compute("PATCH", path, {"nats": [nat]}))
    (shown,) = cloud.compute("GET", path).json["nats"]
    assert (shown["name"], shown["type"], "natIps" in shown) == ("nat", "PUBLIC", False)
    assert "a name of its own" in cloud.compute("PATCH", path, {"nats": [nat, nat]}).error
    cloud.done(cloud.compute("PATCH", path, {"nats": []}))
    assert "nats" not in cloud.compute("GET", path).json
    cloud.done(cloud.compute("DELETE", path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"allowed": []}, "Exactly one of 'allowed' and 'denied'"),
        ({"priority": 70000}, "Must be between 0 and 65535"),
        ({"sourceRanges": ["10.0.0.0/33"]}, "valid CIDR"),
        ({"allowed": [{"IPProtocol": "quic"}]}, "well known IP protocol"),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["ssh"]}]}, "Ports must be"),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["65536"]}]}, "Ports must be"),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["80-70000"]}]}, "Ports must be"),
        ({"network": "global/networks/none"}, "was not found"),
    ],
)
def test_firewall_rules_are_checked(cloud: CloudFront, change: dict[str, Any], message: str) -> None:
    body = {
        "name": fresh("rule"),
        "network": f"global/networks/{make_network(cloud)}",
        "allowed": [{"IPProtocol": "tcp", "ports": ["22", "8470-8482"]}],
        **change,
    }
    assert message in cloud.compute("POST", "global/firewalls", body).error


def test_a_firewall_rule_lives(cloud: CloudFront) -> None:
    network, name = make_network(cloud), fresh("rule")
    body = {"name": name, "network": f"global/networks/{network}", "allowed": [{"IPProtocol": "tcp"}]}
    cloud.done(cloud.compute("POST", "global/firewalls", body))
    shown = cloud.compute("GET", f"global/firewalls/{name}").json
    assert (shown["priority"], shown["direction"], shown["sourceRanges"]) == (1000, "INGRESS", ["0.0.0.0/0"])
    patch = {"sourceRanges": ["10.0.0.0/8"], "targetTags": [], "network": body["network"], "priority": 900}
    cloud.done(cloud.compute("PATCH", f"global/firewalls/{name}", patch))
    shown = cloud.compute("GET", f"global/firewalls/{name}").json
    assert (shown["priority"], shown["sourceRanges"], "targetTags" in shown) == (900, ["10.0.0.0/8"], False)
    assert cloud.compute("DELETE", f"global/networks/{network}").status == 400
    cloud.done(cloud.compute("DELETE", f"global/firewalls/{name}"))


def test_a_disk_from_a_snapshot_has_its_content(cloud: CloudFront, snapshot: str) -> None:
    name = make_disk(cloud, snapshot)
    disk = cloud.compute("GET", f"zones/{ZONE}/disks/{name}").json
    assert (disk["status"], disk["sizeGb"], disk["provisionedThroughput"]) == ("READY", "1000", "2400")
    link = f"https://www.googleapis.com/compute/beta/projects/{PROJECT}"
    assert disk["type"] == f"{link}/zones/{ZONE}/diskTypes/hyperdisk-ml"
    assert disk["zone"] == f"{link}/zones/{ZONE}"
    assert disk["sourceSnapshot"] == f"{link}/global/snapshots/{snapshot}"
    full = f"projects/{PROJECT}/zones/{ZONE}/disks/{name}"
    assert cloud.world.images[full].read_bytes() == b"data"
    cloud.done(cloud.compute("DELETE", f"global/snapshots/{snapshot}"))
    cloud.done(cloud.compute("DELETE", f"zones/{ZONE}/disks/{name}"))
    assert full not in cloud.world.images


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sourceSnapshot": f"projects/{PROJECT}/global/snapshots/none"}, "snapshots/none' was not found"),
        ({"sourceImage": "projects/debian-cloud/global/images/family/debian-12"}, "debian-12' was not found"),
        ({"type": f"zones/{ZONE}/diskTypes/floppy"}, "floppy' was not found"),
        ({"type": "zones/us-east5-a/diskTypes/hyperdisk-ml"}, "The URL is malformed"),
        ({"zone": "zones/us-east5-a"}, "Cross-zone references"),
        ({"sizeGb": 40}, "cannot be smaller than the snapshot size (50 GB)"),
        ({"sizeGb": 65537}, "must be between 4 GB and 65536 GB"),
        ({"provisionedThroughput": 399}, "must be between 400 and 1200000 MiB/s"),
        ({"provisionedThroughput": 1_200_001}, "must be between 400 and 1200000 MiB/s"),
        ({"sizeGb": 50, "provisionedThroughput": 80_001}, "must be between 400 and 80000 MiB/s"),
        ({"accessMode": "READ_WRITE_MANY"}, "Access mode is not supported"),
        ({"type": f"zones/{ZONE}/diskTypes/pd-ssd", "accessMode": None}, "Throughput cannot be provisioned"),
    ],
)
def test_disks_are_checked(cloud: CloudFront, snapshot: str, change: dict[str, Any], message: str) -> None:
    reply = cloud.compute("POST", f"zones/{ZONE}/disks", disk_body(fresh("disk"), snapshot) | change)
    assert message in reply.error


def test_a_disk_changes(cloud: CloudFront, snapshot: str) -> None:
    name = make_disk(cloud, snapshot, labels={"env": "dev"})
    path = f"zones/{ZONE}/disks/{name}"
    before = cloud.compute("GET", path).json
    labels = {"labels": {"env": "prod"}, "labelFingerprint": before["labelFingerprint"]}
    cloud.done(cloud.compute("POST", f"{path}/setLabels", labels))
    assert cloud.compute("POST", f"{path}/setLabels", labels).status == 412
    cloud.done(cloud.compute("POST", f"{path}/resize", {"sizeGb": 2000}))
    assert "must be larger" in cloud.compute("POST", f"{path}/resize", {"sizeGb": 500}).error
    patch = {"name": name, "provisionedThroughput": 4800}
    cloud.done(cloud.compute("PATCH", f"{path}?paths=provisionedThroughput", patch))
    assert "cannot be updated" in cloud.compute("PATCH", f"{path}?paths=type", {"name": name}).error
    again = patch | {"provisionedThroughput": 2400}
    assert "rate limited" in cloud.compute("PATCH", f"{path}?paths=provisionedThroughput", again).error
    after = cloud.compute("GET", path).json
    assert (after["labels"], after["sizeGb"], after["provisionedThroughput"]) == (
        {"env": "prod"},
        "2000",
        "4800",
    )


def test_a_snapshot_of_a_disk_has_its_content(cloud: CloudFront, snapshot: str) -> None:
    disk, name = make_disk(cloud, snapshot), fresh("copy")
    done = cloud.done(
        cloud.compute(
            "POST", f"zones/{ZONE}/disks/{disk}/createSnapshot", {"name": name, "labels": {"a": "b"}}
        )
    )
    assert done["zone"].endswith(ZONE)
    shown = cloud.compute("GET", f"global/snapshots/{name}").json
    assert (shown["status"], shown["diskSizeGb"], shown["labels"]) == ("READY", "1000", {"a": "b"})
    assert cloud.world.images[f"projects/{PROJECT}/global/snapshots/{name}"].read_bytes() == b"data"


def test_places_are_listed(cloud: CloudFront) -> None:
    regions = cloud.compute("GET", "regions").json
    assert [region["name"] for region in regions["items"]] == ["us-central1", "us-east5"]
    assert len(regions["items"][1]["zones"]) == 2
    assert cloud.compute("GET", f"zones/{ZONE}").json["region"].endswith(f"/regions/{REGION}")
    types = cloud.compute("GET", f"zones/{ZONE}/diskTypes").json["items"]
    assert "hyperdisk-ml" in [item["name"] for item in types]
    named = cloud.compute("GET", "zones?filter=name%3Dus-east5-a").json["items"]
    assert [zone["name"] for zone in named] == ["us-east5-a"]
    assert (
        cloud.request("GET", "compute.googleapis.com/compute/beta/projects/123456789012").json["name"]
        == PROJECT
    )


def test_a_failed_operation_leaves_nothing(cloud: CloudFront) -> None:
    cloud.faults.add(
        {
            "match": {"method": "compute.networks.insert"},
            "times": 1,
            "what": {"operation_error": {"code": "INTERNAL", "message": "no luck"}},
        }
    )
    name = fresh("net")
    body = {"name": name, "autoCreateSubnetworks": False}
    failed = cloud.done(cloud.compute("POST", "global/networks", body))
    assert failed["error"]["errors"] == [{"code": "INTERNAL", "message": "no luck"}]
    cloud.done(cloud.compute("POST", "global/networks", body))

"""Requests against Google's discovery documents: the recorded ones pass, broken ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rehearsal.cloud.core.errors import ApiError
from rehearsal.cloud.door.discovery import APIS, match

P = "projects/wire-test"
UNKNOWN = "Invalid JSON payload received. Unknown name"
NODES = f"/v2alpha1/{P}/locations/us-east5-b/nodes"


def check(method: str, host: str, target: str, body: Any = None) -> str:
    """The method id of a request that is well formed."""
    path, _, query = target.partition("?")
    result = match(f"{host}.googleapis.com", method, path)
    assert result is not None, f"{method} {host} {path}"
    result.route.path_parameters(result.raw_path)
    result.route.query_parameters(query)
    if not result.media:
        result.route.check_body({} if body is None else body)
    return result.route.method_id


def refused(method: str, host: str, target: str, body: Any = None) -> str:
    with pytest.raises(ApiError) as caught:
        check(method, host, target, body)
    assert caught.value.code == 400
    return caught.value.message


@pytest.mark.parametrize(
    ("method", "host", "path", "method_id"),
    [
        ("POST", "tpu", NODES, "tpu.projects.locations.nodes.create"),
        ("POST", "tpu", f"{NODES}/n:stop", "tpu.projects.locations.nodes.stop"),
        ("GET", "tpu", f"/v2/{P}/locations/z/operations/o", "tpu.projects.locations.operations.get"),
        ("GET", "compute", "/compute/beta/projects/123456789012", "compute.projects.get"),
        ("GET", "www", f"/compute/v1/{P}/zones/z/disks/d", "compute.disks.get"),
        ("POST", "compute", f"/compute/v1/{P}/global/operations/o/wait", "compute.globalOperations.wait"),
        ("GET", "storage", "/storage/v1/b/x/o/scripts%2Ftrain.py", "storage.objects.get"),
        ("GET", "storage", "/download/storage/v1/b/x/o/a%2Fb", "storage.objects.get"),
        ("POST", "storage", "/upload/storage/v1/b/x/o", "storage.objects.insert"),
        ("PUT", "storage", "/upload/storage/v1/b/x/o", "storage.objects.insert"),
        ("POST", "storage", "/resumable/upload/storage/v1/b/x/o", "storage.objects.insert"),
        ("GET", "storage", "/storage/v1/b/x/anywhereCaches/", "storage.anywhereCaches.list"),
        (
            "POST",
            "cloudresourcemanager",
            f"/v1/{P}:getIamPolicy",
            "cloudresourcemanager.projects.getIamPolicy",
        ),
        ("GET", "serviceusage", "/v1beta1/operations/acat.p2-1-x", "serviceusage.operations.get"),
        ("GET", "www", "/oauth2/v2/userinfo", "oauth2.userinfo.get"),
    ],
)
def test_a_path_leads_to_its_method(method: str, host: str, path: str, method_id: str) -> None:
    result = match(f"{host}.googleapis.com", method, path)
    assert result is not None
    assert result.route.method_id == method_id


@pytest.mark.parametrize(
    ("method", "host", "path"),
    [
        ("GET", "tpu", "/v3/projects/p/locations/z/nodes"),
        ("GET", "tpu", "/v2/projects/p/locations/z/nodez"),
        ("PUT", "tpu", f"{NODES}/n"),
        ("POST", "tpu", f"{NODES}/n:explode"),
        ("GET", "compute", "/storage/v1/b"),
        ("GET", "compute", "/compute/v1/projects//zones"),
        ("GET", "example", "/v1/x"),
    ],
)
def test_what_google_does_not_have_leads_nowhere(method: str, host: str, path: str) -> None:
    assert match(f"{host}.googleapis.com", method, path) is None


def test_path_parameters_are_decoded() -> None:
    result = match("storage.googleapis.com", "GET", "/storage/v1/b/x/o/a%2Fb%20c%3F")
    assert result is not None
    assert result.route.path_parameters(result.raw_path) == {"bucket": "x", "object": "a/b c?"}


def test_query_parameters_are_typed() -> None:
    result = match("compute.googleapis.com", "PATCH", f"/compute/beta/{P}/zones/z/disks/d")
    assert result is not None
    values = result.route.query_parameters("alt=json&paths=a&paths=b&prettyPrint=false")
    assert values == {"alt": "json", "paths": ["a", "b"], "prettyPrint": False}


@pytest.mark.parametrize(
    ("method", "host", "target", "body", "message"),
    [
        (
            "POST", "tpu", NODES, {"color": "red"},
            f"{UNKNOWN} \"color\" at 'node': Cannot find field.",
        ),
        (
            "POST", "tpu", NODES, {"networkConfig": {"mtu": 1}},
            f"{UNKNOWN} \"mtu\" at 'node.network_config': Cannot find field.",
        ),
        (
            "POST", "tpu", NODES, {"dataDisks": [{"sourceDisk": "d"}, {"disk": "d"}]},
            f"{UNKNOWN} \"disk\" at 'node.data_disks[1]': Cannot find field.",
        ),
        (
            "POST", "tpu", NODES, {"labels": {"a": 1}},
            "Invalid value at 'node.labels[0].value' (TYPE_STRING), 1",
        ),
        ("POST", "tpu", NODES, {"description": 5}, "Invalid value at 'node.description' (TYPE_STRING), 5"),
        ("POST", "tpu", NODES, {"tags": "a"}, "Invalid value at 'node.tags' (TYPE_ARRAY), \"a\""),
        (
            "POST", "tpu", NODES, {"shieldedInstanceConfig": {"enableSecureBoot": "yes"}},
            "Invalid value at 'node.shielded_instance_config.enable_secure_boot' (TYPE_BOOL), \"yes\"",
        ),
        (
            "POST", "tpu", NODES, {"dataDisks": [{"mode": "READ"}]},
            "Invalid value at 'node.data_disks[0].mode' (TYPE_ENUM), \"READ\"",
        ),
        (
            "POST", "tpu", f"{NODES}?nodeID=n", {},
            'Invalid JSON payload received. Unknown name "nodeID": Cannot bind query parameter. '
            "Field 'nodeID' could not be found in request message.",
        ),
        (
            "POST", "iam", f"/v1/{P}/serviceAccounts", {"account": "x"},
            'Invalid JSON payload received. Unknown name "account": Cannot find field.',
        ),
        ("GET", "storage", "/storage/v1/b", None, "Required parameter: project"),
        ("POST", "compute", f"/compute/v1/{P}/global/networks", {}, "Required field 'name' not specified"),
        (
            "POST", "compute", f"/compute/v1/{P}/global/networks", {"name": "n", "mtu": 2**31},
            "Invalid value at 'network.mtu' (TYPE_INT32), 2147483648",
        ),
        (
            "POST", "compute", f"/compute/v1/{P}/global/networks", {"name": "Net"},
            "Invalid value for field 'network.name': 'Net'. Must be a match of regex "
            "'[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?'",
        ),
        (
            "POST", "compute", f"/compute/v1/{P}/zones/z/disks", {"name": "d", "sizeGb": "ten"},
            "Invalid value at 'disk.size_gb' (TYPE_INT64), \"ten\"",
        ),
        (
            "POST", "cloudkms", f"/v1/{P}/locations/l/keyRings/r/cryptoKeys", {"rotationPeriod": "1d"},
            "Invalid value at 'crypto_key.rotation_period' (TYPE_STRING), \"1d\"",
        ),
        (
            "POST", "cloudkms", f"/v1/{P}/locations/l/keyRings/r/cryptoKeys",
            {"nextRotationTime": "tomorrow"},
            "Invalid value at 'crypto_key.next_rotation_time' (TYPE_STRING), \"tomorrow\"",
        ),
        (
            "POST", "cloudresourcemanager", f"/v1/{P}:setIamPolicy", {"policy": {"etag": "a b"}},
            "Invalid value at 'policy.etag' (TYPE_BYTES), \"a b\"",
        ),
    ],
)  # fmt: skip
def test_a_broken_request_is_refused_in_googles_words(
    method: str, host: str, target: str, body: Any, message: str
) -> None:
    assert refused(method, host, target, body) == message


def test_all_violations_are_told_at_once() -> None:
    message = refused("POST", "tpu", NODES, {"colour": 1, "shape": 2})
    assert len(message.splitlines()) == 2


@pytest.mark.parametrize(
    "disk",
    [
        {"name": "d", "sizeGb": "1000"},
        {"name": "d", "sizeGb": 1000},
        {"name": "d", "sizeGb": 1000.0},
        {"name": "d", "description": None},
        {"name": "d", "creationTimestamp": "x", "selfLink": "y", "users": ["z"]},
    ],
)
def test_what_google_takes_is_taken(disk: dict[str, Any]) -> None:
    assert check("POST", "compute", f"/compute/v1/{P}/zones/z/disks", disk) == "compute.disks.insert"


def test_tensorstores_reads_pass_the_caches_and_the_door() -> None:
    target = "/storage/v1/b/x/o/manifest.ocdbt?alt=media&tensorstore=ff2f4bb875db69ea2cc9094a3ee505ec"
    assert check("GET", "storage", target) == "storage.objects.get"


RECORDINGS = Path(__file__).parents[1] / "providers" / "recordings"
# An empty text for an enum, and operations polled where the invented answers said, which isn't Google's path.
NOT_BY_THE_DOCUMENT = {"compute.Instance", "iam.WorkloadIdentityPool", "iam.WorkloadIdentityPoolProvider"}


def is_served(path: Path) -> bool:
    """Check that there is a document of each API, and of its version, that a recording's requests go to."""
    paths = [request["path"].split("/") for request in json.loads(path.read_text())["requests"]]
    apis = [(host.removesuffix(".googleapis.com").rpartition("-")[2], below[:3]) for host, *below in paths]
    return all(any((api, version) in APIS for version in below) for api, below in apis)


FILES = [f for f in sorted(RECORDINGS.glob("*.json")) if is_served(f) and f.stem not in NOT_BY_THE_DOCUMENT]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_the_official_provider_sends_is_well_formed(path: Path) -> None:
    """Method, path, query and body of every recorded request, read-backs and polls included."""
    for request in json.loads(path.read_text())["requests"]:
        host, _, target = request["path"].partition("/")
        check(request["method"], host.removesuffix(".googleapis.com"), f"/{target}", request["body"])

"""Cloud Logging: what is written is listed, by those who may, and nothing else is."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cloud_front import NUMBER, PROJECT, CloudFront

_numbers = itertools.count()
WRITE = "logging.googleapis.com/v2/entries:write"
LIST = "logging.googleapis.com/v2/entries:list"
LOG = f"projects/{PROJECT}/logs/tpu-host"
RESOURCE = {
    "type": "generic_node",
    "labels": {"location": "us-east5-b", "namespace": "train", "node_id": "tpu-dev"},
}


@pytest.fixture
def node() -> str:
    """A node's name that no other test writes about."""
    return f"node-{next(_numbers)}"


def write(cloud: CloudFront, node: str, *entries: dict[str, Any], **more: Any) -> Any:
    body = {"logName": LOG, "resource": RESOURCE, "labels": {"node": node}, "entries": list(entries), **more}
    return cloud.request("POST", WRITE, {key: value for key, value in body.items() if value is not None})


def texts(cloud: CloudFront, wanted: str, **more: Any) -> list[str]:
    body = {"resourceNames": [f"projects/{PROJECT}"], "filter": wanted, **more}
    reply = cloud.request("POST", LIST, body)
    assert reply.status == 200, reply.body
    return [entry["textPayload"] for entry in reply.json.get("entries", [])]


def test_entries_are_listed_in_their_order_whatever_that_of_writing_was(cloud: CloudFront, node: str) -> None:
    now = cloud.world.clock.rfc3339()
    assert write(cloud, node, {"textPayload": "last"}, {"textPayload": "first", "timestamp": now}).json == {}
    desired = f'labels.node="{node}"'
    assert texts(cloud, desired) == ["first", "last"]
    assert texts(cloud, desired, orderBy="timestamp desc") == ["last", "first"]
    body = {"resourceNames": [f"projects/{NUMBER}"], "filter": desired, "pageSize": 1}
    first = cloud.request("POST", LIST, body).json
    assert (len(first["entries"]), first["entries"][0]["severity"]) == (1, "DEFAULT")
    second = cloud.request("POST", LIST, {**body, "pageToken": first["nextPageToken"]}).json
    assert "nextPageToken" not in second
    (entry,) = second["entries"]
    assert (entry["logName"], entry["labels"], entry["resource"]["labels"]["project_id"]) == (
        LOG,
        {"node": node},
        PROJECT,
    )


def test_what_is_written_twice_is_kept_once(cloud: CloudFront, node: str) -> None:
    now = cloud.world.clock.rfc3339()
    entry = {"textPayload": "once", "timestamp": now, "insertId": "a"}
    for _ in range(2):
        write(cloud, node, entry)
    write(cloud, node, entry | {"insertId": "b", "textPayload": "another"})
    assert texts(cloud, f'labels.node="{node}"') == ["once", "another"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", ["a", "b", "c"]),
        ('AND textPayload="b"', ["b"]),
        ('textPayload:"B"', ["b"]),
        ('AND textPayload!="b"', ["a", "c"]),
        ("AND severity>=WARNING", ["b", "c"]),
        ("severity=ERROR", ["c"]),
        ('AND labels.unit="tpu-job.service"', ["a"]),
        ('resource.labels.node_id="tpu-dev" AND resource.type=generic_node AND textPayload=a', ["a"]),
        (f'logName="{LOG}" severity<WARNING', ["a"]),
        (f'logName="{LOG}-other"', []),
        ('textPayload="a" OR textPayload="c"', ["a", "c"]),
        ('severity>=WARNING AND textPayload="a" OR textPayload="b"', ["b"]),  # OR binds before AND
        ("NOT labels.unit:*", ["b", "c"]),
        ('NOT textPayload="a" OR textPayload="a"', ["a", "b", "c"]),
        ('(labels.unit="x" OR NOT (labels.unit:* severity=ERROR)) textPayload!="b"', ["a", "c"]),
        ('timestamp>="2020-01-01T00:00:00Z" AND timestamp<"2020-01-02T00:00:00Z"', []),
    ],
)
def test_filters(cloud: CloudFront, node: str, more: str, expected: list[str]) -> None:
    write(
        cloud,
        node,
        {"textPayload": "a", "labels": {"unit": "tpu-job.service"}},
        {"textPayload": "b", "severity": "WARNING"},
        {"textPayload": "c", "severity": "ERROR"},
    )
    assert sorted(texts(cloud, f'labels.node="{node}" {more}')) == expected


@pytest.mark.parametrize(
    "wanted",
    [
        '-labels.node="x"',
        '(labels.node="x"',
        'labels.node="x" OR',
        "NOT",
        'textPayload!~"a.*"',
        "some words",
        'labels.node=("x" OR "y")',
        'labels.node="x" AND )',
        'labels.node="x" AND labels.node=)',
        "3 = 3",
        'httpRequest.status="200"',
        'timestamp="2026-11-22T10:00:00Z" AND',
        "labels.node>3",
    ],
)
def test_a_filter_that_is_not_emulated_fails_loudly(cloud: CloudFront, wanted: str) -> None:
    reply = cloud.request("POST", LIST, {"resourceNames": [f"projects/{PROJECT}"], "filter": wanted})
    assert (reply.status, reply.json["error"]["status"]) == (501, "UNIMPLEMENTED")


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"entries": []}, 400, "entries"),
        ({"logName": None}, 400, "missing the logs component"),
        ({"logName": f"projects/{PROJECT}/logs/a b"}, 400, "missing the logs component"),
        ({"logName": "projects/other/logs/x"}, 403, "projects/other"),
        ({"resource": None}, 400, "resource.type"),
        ({"resource": {"type": "tpu_worker"}}, 501, "not emulated"),
        ({"resource": {"type": "generic_node", "labels": {"zone": "z"}}}, 400, "'zone'"),
        ({"entries": [{}]}, 400, "exactly one payload"),
        ({"entries": [{"textPayload": "x", "text": "y"}]}, 400, 'Unknown name "text"'),
        ({"entries": [{"textPayload": 3}]}, 400, "text_payload"),
        ({"entries": [{"textPayload": "x", "severity": "LOUD"}]}, 400, "severity"),
        ({"entries": [{"textPayload": "x" * (256 << 10)}]}, 400, "exceeds maximum size"),
        ({"labels": {str(n): "" for n in range(65)}, "entries": [{"textPayload": "x"}]}, 400, "at most 64"),
    ],
)
def test_what_google_refuses_is_refused(
    cloud: CloudFront, node: str, change: dict[str, Any], status: int, message: str
) -> None:
    more = {"entries": [{"textPayload": "x"}], **change}
    body = {"logName": LOG, "resource": RESOURCE, **more}
    reply = cloud.request("POST", WRITE, {key: value for key, value in body.items() if value is not None})
    assert (reply.status, message in reply.error) == (status, True), reply.body


def test_with_partial_success_the_good_ones_are_kept(cloud: CloudFront, node: str) -> None:
    entries = [{"textPayload": "good"}, {"textPayload": "x" * (256 << 10)}]
    assert write(cloud, node, *entries).status == 400
    assert texts(cloud, f'labels.node="{node}"') == []
    reply = write(cloud, node, *entries, partialSuccess=True)
    assert (reply.status, list(reply.json["error"]["details"][0]["logEntryErrors"])) == (400, ["1"])
    assert texts(cloud, f'labels.node="{node}"') == ["good"]
    write(cloud, node, {"textPayload": "dry"}, dryRun=True)
    assert texts(cloud, f'labels.node="{node}"') == ["good"]


def test_times_far_away_are_taken_and_never_listed(cloud: CloudFront, node: str) -> None:
    for at in ("2001-01-01T00:00:00Z", "2100-01-01T00:00:00Z"):
        assert write(cloud, node, {"textPayload": "x", "timestamp": at}).status == 200
    assert texts(cloud, f'labels.node="{node}"') == []
    assert write(cloud, node, {"textPayload": "x", "timestamp": "yesterday"}).status == 400


def test_who_writes_may_not_read_and_who_reads_may_not_write(cloud: CloudFront, node: str) -> None:
    grants = {"roles/logging.logWriter": "writer", "roles/logging.viewer": "viewer"}
    url = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = cloud.request("POST", f"{url}:getIamPolicy", {}).json
    for role, name in grants.items():
        policy["bindings"].append({"role": role, "members": [f"user:{name}-{node}@example.com"]})
    assert cloud.request("POST", f"{url}:setIamPolicy", {"policy": policy}).status == 200
    written = {"logName": LOG, "resource": RESOURCE, "entries": [{"textPayload": "x"}]}
    listed = {"resourceNames": [f"projects/{PROJECT}"]}
    mapping = {
        name: [
            cloud.request("POST", url, body, token=cloud.token_of(f"{name}-{node}@example.com")).status
            for url, body in ((WRITE, written), (LIST, listed))
        ]
        for name in ("writer", "viewer", "nobody")
    }
    assert mapping == {"writer": [200, 403], "viewer": [403, 200], "nobody": [403, 403]}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"resourceNames": ["projects/other"]}, 403),
        ({"resourceNames": [f"projects/{PROJECT}/locations/global/buckets/b/views/v"]}, 501),
        ({"resourceNames": [f"projects/{PROJECT}"], "orderBy": "severity"}, 400),
        ({"resourceNames": [f"projects/{PROJECT}"], "pageSize": -1}, 400),
        ({"resourceNames": [f"projects/{PROJECT}"], "filter": 'timestamp>"soon"'}, 400),
        ({"resourceNames": [f"projects/{PROJECT}"], "filter": 'severity>="LOUD"'}, 400),
    ],
)
def test_a_list_of_what_is_not_there_is_refused(cloud: CloudFront, body: dict[str, Any], status: int) -> None:
    assert cloud.request("POST", LIST, body).status == status


def test_what_else_the_api_has_is_not_emulated(cloud: CloudFront) -> None:
    reply = cloud.request("POST", "logging.googleapis.com/v2/entries:tail", {})
    assert reply.status == 501

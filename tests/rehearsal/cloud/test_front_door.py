"""Authentication, refusals, IAM, batches and the log: what the front door does before a service runs."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cloud_front import PROJECT, CloudFront

from rehearsal.cloud.core.service import Call

ALICE = "alice@example.com"
NETWORKS = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/global/networks"


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[CloudFront]:
    front = CloudFront(tmp_path)
    yield front
    front.close()


def test_no_token_and_a_bad_token_are_refused(cloud: CloudFront) -> None:
    for token, text in (("", "missing required authentication"), ("ya29.x", "invalid authentication")):
        reply = cloud.request("GET", NETWORKS, token=token)
        assert (reply.status, reply.json["error"]["status"]) == (401, "UNAUTHENTICATED")
        assert text in reply.error
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")


def test_answers_look_like_googles(cloud: CloudFront) -> None:
    reply = cloud.request("GET", NETWORKS)
    assert reply.headers["Content-Type"] == "application/json; charset=UTF-8"
    missing = cloud.request("GET", f"{NETWORKS}/none").json["error"]
    assert missing["code"] == 404
    assert missing["errors"] == [{"message": missing["message"], "domain": "global", "reason": "notFound"}]


def test_a_malformed_request_is_refused_and_counted(logged: CloudFront) -> None:
    reply = logged.request("POST", NETWORKS, {"name": "n", "colour": "red"})
    assert (reply.status, reply.json["error"]["status"]) == (400, "INVALID_ARGUMENT")
    violation = reply.json["error"]["details"][0]["fieldViolations"][0]
    assert violation["field"] == "network"
    assert 'Unknown name "colour"' in violation["description"]
    assert logged.request("POST", NETWORKS, b"{").error.startswith("Invalid JSON payload received.")
    assert logged.request("GET", NETWORKS, {"name": "n"}).status == 400
    counts = logged.requests.counts()
    assert (counts["validated"], counts["refused"]) == (0, 3)
    assert counts["methods"]["compute.networks.insert"] == {"validated": 0, "refused": 2}


def test_unknown_methods_are_refused_and_counted(logged: CloudFront) -> None:
    assert logged.request("GET", f"{NETWORKS}x").status == 404
    instances = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/zones/us-east5-b/machineTypes"
    reply = logged.request("GET", instances)
    assert (reply.status, reply.error) == (501, "compute.machineTypes.list is not emulated.")
    reasons = [entry["reason"] for entry in logged.requests.since(0)["requests"]]
    assert reasons == ["unknown-method", "unimplemented"]
    assert logged.requests.counts()["refused"] == 2


def test_a_missing_permission_is_refused_in_computes_words(cloud: CloudFront) -> None:
    token = cloud.token_of(ALICE)
    reply = cloud.request("POST", NETWORKS, {"name": "n", "autoCreateSubnetworks": False}, token=token)
    assert reply.status == 403
    assert reply.error == (
        f"Required 'compute.networks.create' permission for 'projects/{PROJECT}/global/networks/n'"
    )
    counts = cloud.requests.counts()["methods"]["compute.networks.insert"]
    assert counts == {"validated": 1, "refused": 0}, "well formed, only not allowed"


def test_fields_trim_an_answer(cloud: CloudFront) -> None:
    url = f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services"
    query = "fields=services%2Fname%2CnextPageToken&filter=state%3AENABLED&pageSize=2"
    answer = cloud.request("GET", f"{url}?{query}").json
    assert [list(service) for service in answer["services"]] == [["name"], ["name"]]
    assert answer["nextPageToken"]
    regions = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/regions"
    nested = cloud.request("GET", f"{regions}?fields=items(name,zones)").json
    assert [set(item) for item in nested["items"]] == [{"name", "zones"}] * 2
    assert cloud.request("GET", f"{regions}?fields=*%2Fname").json["items"] == [
        {"name": item["name"]} for item in nested["items"]
    ]
    assert cloud.request("GET", f"{regions}?fields=items(name").status == 400


def test_a_download_by_the_xml_api_is_a_download(cloud: CloudFront) -> None:
    cloud.bucket("downloads")
    generation = cloud.upload("downloads", "folder%2Fx")["generation"]
    reply = cloud.request("GET", f"storage.googleapis.com/downloads/folder/x?generation={generation}")
    assert (reply.status, len(reply.body)) == (200, 1000)
    cloud.let_pass(100)  # a stream is logged once it has been sent
    newest = cloud.requests.since(0)["requests"][-1]
    assert newest["method_id"] == "storage.objects.get"
    path = "/download/storage/v1/b/downloads/o/folder%2Fx"
    assert newest["path"] == f"{path}?generation={generation}&alt=media"


def test_the_parts_of_a_batch_are_judged_one_by_one(cloud: CloudFront) -> None:
    for bucket in ("batch", "other"):
        cloud.bucket(bucket)
        cloud.upload(bucket, "a%2Fb")
    cloud.iam.set_policy("projects/_/buckets/other", {"bindings": []})
    parts = [
        "DELETE /storage/v1/b/batch/o/a%2Fb HTTP/1.1\r\nAccept: */*",
        "DELETE /storage/v1/b/other/o/a%2Fb HTTP/1.1",
        "DELETE /storage/v1/b/batch/nonsense HTTP/1.1",
        "GET https://storage.googleapis.com/storage/v1/b/batch/o/x?colour=red HTTP/1.1",
    ]
    chunks = [
        f"--limit\r\nContent-Type: application/http\r\nContent-ID: <id+{n}>\r\n\r\n{part}\r\n\r\n\r\n"
        for n, part in enumerate(parts)
    ]
    body = ("".join(chunks) + "--limit--\r\n").encode()
    headers = {"Content-Type": 'multipart/mixed; boundary="limit"'}
    reply = cloud.request("POST", "storage.googleapis.com/batch/storage/v1", body, headers=headers)
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("multipart/mixed; boundary=")
    lines = reply.body.decode().split("\r\n")
    assert [line.split()[1] for line in lines if line.startswith("HTTP/1.1")] == ["204", "403", "404", "400"]
    answered = [line for line in lines if line.startswith("Content-ID")]
    assert answered == [f"Content-ID: <response-id+{n}>" for n in range(4)]
    assert cloud.request("GET", "storage.googleapis.com/storage/v1/b/batch/o/a%2Fb").status == 404


def test_a_batch_that_is_none_is_refused(cloud: CloudFront) -> None:
    reply = cloud.request("POST", "storage.googleapis.com/batch/storage/v1", b"hello")
    assert reply.status == 400


def test_a_crash_of_ours_is_a_500_that_fails_the_rehearsal(logged: CloudFront) -> None:
    logged.world.directory[f"projects/{PROJECT}/global/networks/bad"] = {"mtu": object()}
    assert logged.request("GET", f"{NETWORKS}/bad").status == 500
    assert logged.requests.counts()["refused"] == 1
    logged.world.mistakes.clear()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"mtu": "big"}, "Invalid value at 'mtu' (TYPE_INT32)"),
        ({"id": 12}, "Invalid value at 'id' (TYPE_UINT64)"),  # 64 bits are sent as text
        ({"description": None}, "Invalid value at 'description' (TYPE_STRING)"),
        ({"routingConfig": {"mode": "x"}}, "Unknown name \"mode\" at 'routing_config'"),
    ],
)
def test_an_answer_that_google_could_not_give_is_sent_and_fails_the_rehearsal(
    logged: CloudFront, body: dict[str, Any], words: str
) -> None:
    async def wrong(call: Call) -> dict[str, Any]:
        return body

    key = ("v1", "compute.networks.get")
    methods = logged.cloud.front_door._methods
    methods[key] = dataclasses.replace(methods[key], handler=wrong)
    reply = logged.request("GET", f"{NETWORKS}/bad?fields=name")
    assert (reply.status, reply.json) == (200, {})
    (mistake,) = logged.world.mistakes
    assert mistake.startswith("the answer to compute.networks.get: ")
    assert words in mistake
    logged.world.mistakes.clear()


def test_every_request_is_in_the_file(logged: CloudFront, tmp_path: Path) -> None:
    logged.request("GET", NETWORKS)
    logged.request("GET", f"{NETWORKS}?x=1", token="")
    lines = [json.loads(line) for line in (tmp_path / "cloud" / "requests.jsonl").read_text().splitlines()]
    assert lines == logged.requests.since(0)["requests"]
    assert lines[0]["principal"] == "owner@example.com"
    assert [(line["n"], line["status"], line["reason"]) for line in lines] == [
        (0, 200, ""),
        (1, 401, "unauthenticated"),
    ]
    assert logged.requests.since(1)["requests"] == lines[1:]
    assert logged.requests.since(2) == {"next": 2, "requests": []}


def test_a_compressed_body_is_read(cloud: CloudFront) -> None:
    body = gzip.compress(json.dumps({"permissions": ["compute.networks.create"]}).encode())
    url = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}:testIamPermissions"
    assert cloud.request("POST", url, body, headers={"Content-Encoding": "gzip"}).json == {
        "permissions": ["compute.networks.create"]
    }

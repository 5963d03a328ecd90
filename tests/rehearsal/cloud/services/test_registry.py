"""Artifact Registry's Docker API: pushes, pulls and refusals, as the distribution specification has them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from services_front import LOCATION, PROJECT, Services

from rehearsal.scenario.imaging import push
from tests.emulated import Reply

API, HOST = "artifactregistry.googleapis.com/v1", "us-east5-docker.pkg.dev"
PATH = f"{PROJECT}/images/mine"
REPOSITORY = f"{LOCATION}/repositories/images"
READER, STRANGER = "reader@example.com", "stranger@example.com"


@pytest.fixture(name="digest", scope="module")
def _digest(started: Services) -> str:
    made = started.made("POST", f"{API}/{LOCATION}/repositories?repositoryId=images", {"format": "DOCKER"})
    started.until_done(API, made["name"])
    started.grant(REPOSITORY, "roles/artifactregistry.reader", f"user:{READER}")

    def send(method: str, where: str, body: bytes, headers: Mapping[str, str]) -> Mapping[str, str]:
        reply = started.request(method, f"{HOST}{where}", body, headers=dict(headers))
        assert reply.status in (201, 202), reply.body
        return dict(reply.headers)

    return push(send, PATH, b"a layer")


def get(services: Services, what: str, who: str = READER, method: str = "GET", path: str = PATH) -> Reply:
    return services.request(method, f"{HOST}/v2/{path}/{what}", token=services.token_of(who))


def error_of(reply: Reply) -> tuple[int, str, str]:
    (error,) = reply.json["errors"]
    return reply.status, error["code"], error["message"]


def test_what_was_pushed_is_pulled_by_its_digest_byte_for_byte(services: Services, digest: str) -> None:
    manifest = get(services, f"manifests/{digest}")
    assert manifest.headers["Content-Type"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest.headers["Docker-Content-Digest"] == digest
    (layer,) = manifest.json["layers"]
    blob = get(services, f"blobs/{layer['digest']}")
    assert (blob.status, len(blob.body)) == (200, layer["size"])
    head = get(services, f"manifests/{digest}", method="HEAD")
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(manifest.body)))


def test_a_client_logs_in_with_an_access_token_as_its_password(services: Services, digest: str) -> None:
    refused = services.request("GET", f"{HOST}/v2/", token="")
    assert error_of(refused)[:2] == (401, "UNAUTHORIZED")
    assert refused.headers["WWW-Authenticate"] == f'Bearer realm="https://{HOST}/v2/token",service="{HOST}"'
    login = base64.b64encode(f"oauth2accesstoken:{services.token_of(READER)}".encode()).decode()
    headers = {"Authorization": f"Basic {login}"}
    token = services.request("GET", f"{HOST}/v2/token?service={HOST}", token="", headers=headers).json[
        "token"
    ]
    assert services.request("GET", f"{HOST}/v2/{PATH}/manifests/{digest}", token=token).status == 200


@pytest.mark.parametrize(("who", "path", "what", "expected"), [
    (READER, PATH, f"manifests/sha256:{'0' * 64}", (404, "MANIFEST_UNKNOWN", "Failed to fetch")),
    (READER, PATH, "manifests/latest", (404, "MANIFEST_UNKNOWN", "Failed to fetch")),
    (READER, PATH, f"blobs/sha256:{'0' * 64}", (404, "BLOB_UNKNOWN", "unknown to registry")),
    (STRANGER, PATH, "manifests/latest", (403, "DENIED", '"artifactregistry.repositories.download')),
    (READER, f"{PROJECT}/none/mine", "manifests/latest", (403, "DENIED", "or it may not exist")),
])  # fmt: skip
def test_what_cant_be_pulled_is_refused_with_the_specifications_code(
    who: str, path: str, what: str, expected: tuple[int, str, str], services: Services, digest: str
) -> None:
    status, code, message = error_of(get(services, what, who, path=path))
    assert (status, code) == expected[:2]
    assert expected[2] in message


def test_who_may_read_may_not_push(services: Services, digest: str) -> None:
    reply = services.request("POST", f"{HOST}/v2/{PATH}/blobs/uploads/", b"", token=services.token_of(READER))
    assert error_of(reply)[:2] == (403, "DENIED")


def test_a_blob_of_another_digest_is_refused_and_so_is_a_manifest_without_its_blobs(
    services: Services, digest: str
) -> None:
    wrong = f"{HOST}/v2/{PATH}/blobs/uploads/?digest=sha256:{'0' * 64}"
    assert error_of(services.request("POST", wrong, b"bytes"))[:2] == (400, "DIGEST_INVALID")
    manifest = get(services, f"manifests/{digest}").json
    manifest["layers"][0]["digest"] = f"sha256:{'0' * 64}"
    put = services.request("PUT", f"{HOST}/v2/{PATH}/manifests/new", json.dumps(manifest).encode())
    assert error_of(put)[:2] == (404, "MANIFEST_BLOB_UNKNOWN")


def test_a_tag_moves_to_the_image_that_was_pushed_last(services: Services, digest: str) -> None:
    first = get(services, f"manifests/{digest}")
    other: dict[str, Any] = {**first.json, "annotations": {"a": "b"}}
    headers = {"Content-Type": first.headers["Content-Type"]}
    for content in (first.body, json.dumps(other).encode()):
        url = f"{HOST}/v2/{PATH}/manifests/latest"
        assert services.request("PUT", url, content, headers=headers).status == 201
    assert get(services, "manifests/latest").json == other
    image = services.made("GET", f"{API}/{REPOSITORY}/dockerImages/mine@{digest}")
    assert (image.get("tags", []), image["uri"]) == ([], f"{HOST}/{PATH}@{digest}")

"""Cloud Build as its API describes it, KMS's encryption, and limits on the roles that may be granted."""

from __future__ import annotations

import base64
from typing import Any

import google_crc32c
import pytest
from cloud_front import OWNER, PROJECT, CloudFront

from rehearsal.cloud.core.errors import JsonObject
from rehearsal.cloud.services.kms.grpc import MESSAGES

P = f"projects/{PROJECT}"
BUILD = "cloudbuild.googleapis.com/v1"
BUILDS = f"cloudbuild.googleapis.com/v1/{P}/builds"
RING = f"cloudkms.googleapis.com/v1/{P}/locations/us-east5/keyRings"
IMAGE = f"docker.io/library/python@sha256:{'0' * 64}"


def step(*arguments: str) -> JsonObject:
    return {"id": "one", "name": IMAGE, "args": list(arguments)}


@pytest.fixture(scope="module")
def account(cloud: CloudFront) -> str:
    body = {"accountId": "builder"}
    made = cloud.request("POST", f"iam.googleapis.com/v1/{P}/serviceAccounts", body)
    return str(made.json["name"])


@pytest.fixture(autouse=True)
def builder(cloud: CloudFront) -> list[JsonObject]:
    """Ends a build with the status that is its first step's argument."""
    ran: list[JsonObject] = []

    async def run(build: JsonObject) -> None:
        ran.append(build)
        build["status"] = build["steps"][0]["args"][0]

    cloud.cloud.builder = run
    return ran


def build(account: str, **more: Any) -> JsonObject:
    options = {"logging": "CLOUD_LOGGING_ONLY"}
    return {"steps": [step("SUCCESS")], "serviceAccount": account, "options": options, **more}


@pytest.mark.parametrize("ends", ["SUCCESS", "FAILURE"])
def test_a_build_runs_once_and_ends_as_its_steps_do(
    cloud: CloudFront, account: str, builder: list[JsonObject], ends: str
) -> None:
    operation = cloud.request("POST", BUILDS, build(account, steps=[step(ends)])).json
    id_ = operation["metadata"]["build"]["id"]
    ended = cloud.until_done(BUILD, operation["name"])
    assert ("error" in ended) is (ends == "FAILURE")
    json = cloud.request("GET", f"{BUILDS}/{id_}").json
    assert json["status"] == ends
    assert len(builder) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": {}}, "logs_bucket"),
        ({"steps": [step("x"), step("y")]}, "unique"),
        ({"steps": [{"args": ["x"]}]}, "steps.name"),
        ({"stpes": []}, "stpes"),
        ({"timeout": 600}, "timeout"),
    ],
)
def test_a_build_that_is_wrong_is_refused(
    cloud: CloudFront, account: str, change: JsonObject, message: str
) -> None:
    reply = cloud.request("POST", BUILDS, build(account, **change))
    assert reply.status == 400
    assert message in reply.error


@pytest.mark.parametrize(
    "change",
    [
        {"steps": [step("$PROJECT_ID")]},
        {"steps": [{**step("x"), "name": "docker.io/library/python"}]},
        {"substitutions": {"_A": "b"}},
        {"artifacts": {"images": ["x"]}},
    ],
)
def test_a_build_that_would_run_otherwise_at_google_is_not_emulated(
    cloud: CloudFront, account: str, change: JsonObject
) -> None:
    assert cloud.request("POST", BUILDS, build(account, **change)).status == 501


def test_only_who_may_act_as_the_account_starts_a_build(cloud: CloudFront, account: str) -> None:
    policy = cloud.iam.policy(P)
    binding = {"role": "roles/cloudbuild.builds.editor", "members": ["user:ann@example.com"]}
    cloud.iam.set_policy(P, {**policy, "bindings": [*policy["bindings"], binding]})
    token = cloud.token_of("ann@example.com")
    reply = cloud.request("POST", BUILDS, build(account), token=token)
    assert (reply.status, "iam.serviceAccounts.actAs" in reply.error) == (403, True)


@pytest.fixture(scope="module")
def key(cloud: CloudFront) -> str:
    cloud.request("POST", f"{RING}?keyRingId=ring", {})
    cloud.request("POST", f"{RING}/ring/cryptoKeys?cryptoKeyId=k", {"purpose": "ENCRYPT_DECRYPT"})
    return f"{RING}/ring/cryptoKeys/k"


def test_what_a_key_encrypts_it_alone_decrypts(cloud: CloudFront, key: str) -> None:
    text = base64.b64encode(b"secret").decode()
    checksum = str(google_crc32c.value(b"secret"))
    sent = {"plaintext": text, "plaintextCrc32c": checksum}
    sealed = cloud.request("POST", f"{key}:encrypt", sent).json
    assert sealed["verifiedPlaintextCrc32c"]
    assert b"secret" not in base64.b64decode(sealed["ciphertext"])
    opened = cloud.request("POST", f"{key}:decrypt", {"ciphertext": sealed["ciphertext"]}).json
    assert (opened["plaintext"], opened["plaintextCrc32c"]) == (text, checksum)
    broken = base64.b64encode(base64.b64decode(sealed["ciphertext"])[:-1] + b"x").decode()
    assert cloud.request("POST", f"{key}:decrypt", {"ciphertext": broken}).status == 400
    wrong = cloud.request("POST", f"{key}:encrypt", {"plaintext": text, "plaintextCrc32c": "1"})
    assert (wrong.status, "plaintext_crc32c" in wrong.error) == (400, True)


def test_messages_of_kms_are_numbered_as_google_numbers_them() -> None:
    """Bytes as the Go client of Google Cloud writes them: field 1 the name, field 2 the plaintext."""
    fromstring = MESSAGES["EncryptRequest"].FromString(b"\x0a\x01k\x12\x02hi")
    assert (fromstring.name, fromstring.plaintext) == ("k", b"hi")  # type: ignore[attr-defined]


def test_an_account_grants_only_the_roles_that_its_condition_lists(cloud: CloudFront) -> None:
    listed = "roles/logging.logWriter"
    changed = "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', [])"
    expression = f"{changed}.hasOnly(['{listed}', 'roles/viewer'])"
    binding = {
        "role": "roles/resourcemanager.projectIamAdmin",
        "members": ["user:bea@example.com"],
        "condition": {"title": "some", "expression": expression},
    }
    policy = cloud.iam.policy(P)
    held = {"role": "roles/editor", "members": ["user:dora@example.com"]}
    cloud.iam.set_policy(P, {**policy, "version": 3, "bindings": [*policy["bindings"], binding, held]})
    token = cloud.token_of("bea@example.com")

    def replace(bindings: list[JsonObject]) -> int:
        body = {"policy": {**cloud.iam.policy(P), "version": 3, "bindings": bindings}}
        url = f"cloudresourcemanager.googleapis.com/v3/{P}:setIamPolicy"
        return cloud.request("POST", url, body, token=token).status

    def grant(role: str) -> int:
        return replace([*cloud.iam.policy(P)["bindings"], {"role": role, "members": [f"user:{OWNER}"]}])

    def revoke(role: str) -> int:
        return replace([binding for binding in cloud.iam.policy(P)["bindings"] if binding["role"] != role])

    assert grant(listed) == 200
    assert grant("roles/owner") == 403
    assert revoke(listed) == 200
    assert revoke("roles/editor") == 403

"""Service accounts, projects, service usage, KMS and OAuth, by raw requests and by Google's own clients."""

from __future__ import annotations

import itertools
import socket
from typing import Any
from urllib.parse import urlencode

import google.auth.exceptions
import google.auth.transport.requests
import google.oauth2.credentials
import pytest
from cloud_front import NUMBER, OWNER, PROJECT, REFRESH_TOKEN, CloudFront

from infra.google.failures import classify

_numbers = itertools.count()
ACCOUNTS = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
PROJECTS = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
SERVICES = f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services"
RINGS = f"cloudkms.googleapis.com/v1/projects/{PROJECT}/locations/us-east5/keyRings"


def make_account(cloud: CloudFront) -> str:
    name = f"account-{next(_numbers)}"
    body = {"accountId": name, "serviceAccount": {"displayName": "Worker", "description": "d"}}
    reply = cloud.request("POST", ACCOUNTS, body)
    assert reply.status == 200, reply.body
    return str(reply.json["email"])


def test_a_service_account_lives(cloud: CloudFront) -> None:
    email = make_account(cloud)
    shown = cloud.request("GET", f"{ACCOUNTS}/{email}").json
    assert (shown["displayName"], shown["projectId"]) == ("Worker", PROJECT)
    assert shown["name"] == f"projects/{PROJECT}/serviceAccounts/{email}"
    by_id = cloud.request("GET", f"iam.googleapis.com/v1/projects/-/serviceAccounts/{shown['uniqueId']}")
    assert by_id.json["email"] == email
    patch = {"serviceAccount": {"displayName": "New", "description": "no"}, "updateMask": "display_name"}
    changed = cloud.request("PATCH", f"{ACCOUNTS}/{email}", patch).json
    assert (changed["displayName"], changed["description"]) == ("New", "d")
    assert email in [account["email"] for account in cloud.request("GET", ACCOUNTS).json["accounts"]]
    token = cloud.token_of(email)
    assert cloud.request("DELETE", f"{ACCOUNTS}/{email}").json == {}
    gone = cloud.request("GET", f"{ACCOUNTS}/{email}")
    assert (gone.status, gone.error) == (404, f"Unknown service account: {email}")
    assert cloud.request("GET", PROJECTS, token=token).status == 401


@pytest.mark.parametrize(
    ("name", "message"), [("short", "length between 6 and 30"), ("Upper-case", "must match")]
)
def test_account_ids_are_checked(cloud: CloudFront, name: str, message: str) -> None:
    reply = cloud.request("POST", ACCOUNTS, {"accountId": name})
    assert (reply.status, message in reply.error) == (400, True)


def test_an_account_id_is_taken_once(cloud: CloudFront) -> None:
    name = make_account(cloud).partition("@")[0]
    reply = cloud.request("POST", ACCOUNTS, {"accountId": name})
    assert reply.status == 409
    assert reply.error == f"Service account {name} already exists within project projects/{PROJECT}."


def test_a_policy_on_a_service_account_lets_others_act_as_it(cloud: CloudFront) -> None:
    email, alice = make_account(cloud), "alice@example.com"
    resource = f"projects/{PROJECT}/serviceAccounts/{email}"
    policy = cloud.request("POST", f"{ACCOUNTS}/{email}:getIamPolicy?options.requestedPolicyVersion=3").json
    policy["bindings"] = [{"role": "roles/iam.serviceAccountUser", "members": [f"user:{alice}"]}]
    assert cloud.request("POST", f"{ACCOUNTS}/{email}:setIamPolicy", {"policy": policy}).status == 200
    assert cloud.iam.allowed(alice, "iam.serviceAccounts.actAs", resource)
    stale = cloud.request("POST", f"{ACCOUNTS}/{email}:setIamPolicy", {"policy": policy})
    assert (stale.status, stale.json["error"]["status"]) == (409, "ABORTED")


def test_a_project_policy_changes_and_keeps_its_owner(cloud: CloudFront) -> None:
    email = make_account(cloud)
    policy = cloud.request(
        "POST", f"{PROJECTS}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}}
    ).json
    assert policy["bindings"][0] == {"role": "roles/owner", "members": [f"user:{OWNER}"]}
    policy["bindings"].append({"role": "roles/logging.logWriter", "members": [f"serviceAccount:{email}"]})
    sent = {"policy": policy, "updateMask": "bindings,etag,auditConfigs"}
    answer = cloud.request("POST", f"{PROJECTS}:setIamPolicy", sent).json
    assert answer["bindings"] == policy["bindings"]
    mapping = {"permissions": ["logging.logEntries.create", "compute.networks.create"]}
    held = cloud.request("POST", f"{PROJECTS}:testIamPermissions", mapping, token=cloud.token_of(email)).json
    assert held == {"permissions": ["logging.logEntries.create"]}
    no_mask = cloud.request("POST", f"{PROJECTS}:setIamPolicy", {"policy": policy, "updateMask": "owner"})
    assert no_mask.status == 400


def test_a_project_is_shown_in_both_versions(cloud: CloudFront) -> None:
    v1 = cloud.request("GET", PROJECTS).json
    assert (v1["projectNumber"], v1["projectId"], v1["lifecycleState"]) == (NUMBER, PROJECT, "ACTIVE")
    v3 = cloud.request("GET", f"cloudresourcemanager.googleapis.com/v3/projects/{NUMBER}").json
    assert (v3["name"], v3["projectId"], v3["state"]) == (f"projects/{NUMBER}", PROJECT, "ACTIVE")
    other = cloud.request("GET", "cloudresourcemanager.googleapis.com/v1/projects/other")
    assert other.status == 403


@pytest.mark.parametrize("names", [["tpu"], ["tpu", "pubsub"]])
def test_who_may_not_enable_a_service_is_refused_by_its_name(cloud: CloudFront, names: list[str]) -> None:
    services, token = [f"{name}.googleapis.com" for name in names], cloud.token_of(make_account(cloud))
    url, body = f"{SERVICES}:batchEnable", {"serviceIds": services}
    if len(services) == 1:
        url, body = f"{SERVICES}/{services[0]}:enable", {}
    reply = cloud.request("POST", url, body, token=token)
    assert reply.status == 403
    assert reply.error.splitlines() == [f"Permission denied to enable service [{name}]" for name in services]
    assert classify(reply.error, reply.status).about == "serviceusage.services.enable"


def test_apis_are_enabled_and_disabled(cloud: CloudFront) -> None:
    ids = ["run.googleapis.com", "eventarc.googleapis.com"]
    started = cloud.request("POST", f"{SERVICES}:batchEnable", {"serviceIds": ids}).json
    assert started["name"].startswith(f"operations/acat.p2-{NUMBER}-")
    done = cloud.until_done("serviceusage.googleapis.com/v1beta1", started["name"])
    assert [service["state"] for service in done["response"]["services"]] == ["ENABLED"] * 2
    enabled = cloud.request("GET", f"{SERVICES}?filter=state:ENABLED&pageSize=200").json["services"]
    assert set(ids) <= {service["config"]["name"] for service in enabled}
    off = cloud.request("POST", f"{SERVICES}/{ids[0]}:disable", {"disableDependentServices": True}).json
    cloud.until_done("serviceusage.googleapis.com/v1", off["name"])
    assert cloud.request("GET", f"{SERVICES}/{ids[0]}").json["state"] == "DISABLED"


def test_services_of_another_project_are_not_shown(cloud: CloudFront) -> None:
    other = SERVICES.replace(PROJECT, "other")
    for url in (other, f"{other}/run.googleapis.com"):
        reply = cloud.request("GET", url)
        assert (reply.status, "projects/other" in reply.error) == (403, True), reply.body


def test_an_unknown_api_is_refused_and_a_batch_of_one(cloud: CloudFront) -> None:
    alone = {"serviceIds": ["run.googleapis.com"]}
    assert cloud.request("POST", f"{SERVICES}:batchEnable", alone).status == 400
    ids = ["tpu.googleapis.com", "tpus.googleapis.com"]
    reply = cloud.request("POST", f"{SERVICES}:batchEnable", {"serviceIds": ids})
    assert (reply.status, reply.error) == (
        400,
        "Not found or permission denied for service(s): tpus.googleapis.com.",
    )


def make_key(cloud: CloudFront) -> str:
    ring, key = f"ring-{next(_numbers)}", f"key-{next(_numbers)}"
    assert cloud.request("POST", f"{RINGS}?keyRingId={ring}").status == 200
    body = {"purpose": "ENCRYPT_DECRYPT", "rotationPeriod": "7776000s", "labels": {"env": "dev"}}
    url = f"{RINGS}/{ring}/cryptoKeys?cryptoKeyId={key}&skipInitialVersionCreation=false"
    assert cloud.request("POST", url, body).status == 200
    return f"{RINGS}/{ring}/cryptoKeys/{key}"


def test_a_key_lives_and_its_versions_are_destroyed(cloud: CloudFront) -> None:
    url = make_key(cloud)
    key = cloud.request("GET", url).json
    assert key["versionTemplate"] == {
        "algorithm": "GOOGLE_SYMMETRIC_ENCRYPTION",
        "protectionLevel": "SOFTWARE",
    }
    assert key["primary"]["state"] == "ENABLED"
    listed = cloud.request("GET", f"{url}/cryptoKeyVersions").json
    assert listed["totalSize"] == 1
    version = f"cloudkms.googleapis.com/v1/{listed['cryptoKeyVersions'][0]['name']}"
    sent = {"plaintext": "eA=="}
    assert cloud.request("POST", f"{url}:encrypt", sent).status == 200
    assert cloud.request("POST", f"{version}:destroy").json["state"] == "DESTROY_SCHEDULED"
    assert cloud.request("POST", f"{url}:encrypt", sent).status == 400
    again = cloud.request("POST", f"{version}:destroy")
    assert (again.status, again.json["error"]["status"]) == (400, "FAILED_PRECONDITION")
    mask = "updateMask=rotationPeriod%2CnextRotationTime"
    changed = cloud.request("PATCH", f"{url}?{mask}").json
    assert "rotationPeriod" not in changed
    assert changed["labels"] == {"env": "dev"}


def test_kms_refuses_as_google_does(cloud: CloudFront) -> None:
    url = make_key(cloud)
    ring = url.split("/cryptoKeys/")[0]
    key_id = url.rpartition("/")[2]
    again = cloud.request("POST", f"{ring}/cryptoKeys?cryptoKeyId={key_id}", {"purpose": "ENCRYPT_DECRYPT"})
    assert again.status == 409
    assert cloud.request("POST", f"{RINGS}?keyRingId=a%20b").status == 400
    missing = cloud.request("GET", f"{RINGS}/none")
    assert missing.error == f"KeyRing projects/{PROJECT}/locations/us-east5/keyRings/none not found."


def test_a_policy_that_is_set_on_a_key_holds_for_its_versions(cloud: CloudFront) -> None:
    url = make_key(cloud)
    resource = url.removeprefix("cloudkms.googleapis.com/v1/")
    account = cloud.request("GET", f"storage.googleapis.com/storage/v1/projects/{PROJECT}/serviceAccount")
    agent = account.json["email_address"]  # is there from now on
    policy = cloud.request("GET", f"{url}:getIamPolicy").json
    role = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    policy["bindings"] = [{"role": role, "members": [f"serviceAccount:{agent}"]}]
    assert cloud.request("POST", f"{url}:setIamPolicy", {"policy": policy}).status == 200
    version = f"{resource}/cryptoKeyVersions/1"
    assert cloud.iam.allowed(agent, "cloudkms.cryptoKeyVersions.useToEncrypt", version)
    other = make_key(cloud).removeprefix("cloudkms.googleapis.com/v1/")
    assert not cloud.iam.allowed(agent, "cloudkms.cryptoKeyVersions.useToEncrypt", other)


def form(cloud: CloudFront, url: str, **fields: str) -> Any:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return cloud.request("POST", url, urlencode(fields).encode(), token="", headers=headers)


def test_tokens_are_told_apart(cloud: CloudFront) -> None:
    info = form(cloud, "oauth2.googleapis.com/tokeninfo", access_token=cloud.token_of()).json
    assert (info["email"], info["email_verified"]) == (OWNER, "true")
    assert 3590 <= int(info["expires_in"]) <= 3600
    bad = cloud.request("GET", "www.googleapis.com/oauth2/v3/tokeninfo?access_token=ya29.no", token="")
    assert (bad.status, bad.json["error"]) == (400, "invalid_token")
    for url in ("openidconnect.googleapis.com/v1/userinfo", "www.googleapis.com/oauth2/v2/userinfo"):
        assert cloud.request("GET", url).json["email"] == OWNER
        assert cloud.request("GET", url, token="").status == 401


def test_only_the_refresh_grant_is_known(cloud: CloudFront) -> None:
    url = "oauth2.googleapis.com/token"
    wrong = form(cloud, url, grant_type="refresh_token", refresh_token="1//stolen")
    assert (wrong.status, wrong.json["error"]) == (400, "invalid_grant")
    other = form(cloud, url, grant_type="password")
    assert (other.status, other.json["error"]) == (400, "unsupported_grant_type")


@pytest.mark.parametrize(
    "url",
    [
        "oauth2.googleapis.com/token",
        "www.googleapis.com/oauth2/v3/token",
        "www.googleapis.com/oauth2/v4/token",
    ],
)
def test_a_refresh_token_is_exchanged_wherever_clients_ask(cloud: CloudFront, url: str) -> None:
    """tensorstore has an address of its own for it, older clients another."""
    given = form(cloud, url, grant_type="refresh_token", refresh_token=REFRESH_TOKEN).json["access_token"]
    about = cloud.request("GET", "openidconnect.googleapis.com/v1/userinfo", token=given)
    assert about.json["email"] == OWNER


def test_google_auth_exchanges_a_refresh_token(cloud: CloudFront, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _to_loopback(socket.getaddrinfo))
    transport = google.auth.transport.requests.Request()
    uri = f"http://oauth2.googleapis.com:{cloud.port}/token"
    credentials = google.oauth2.credentials.Credentials(
        None, refresh_token=REFRESH_TOKEN, token_uri=uri, client_id="i", client_secret="s"
    )
    credentials.refresh(transport)
    session = google.auth.transport.requests.AuthorizedSession(credentials)
    answer = session.get(f"http://openidconnect.googleapis.com:{cloud.port}/v1/userinfo")
    assert answer.json()["email"] == OWNER
    thief = google.oauth2.credentials.Credentials(
        None, refresh_token="1//stolen", token_uri=uri, client_id="i", client_secret="s"
    )
    with pytest.raises(google.auth.exceptions.RefreshError, match="invalid_grant"):
        thief.refresh(transport)


def _to_loopback(real: Any) -> Any:
    """Names of Google's lead to this computer, as they do in a world."""

    def resolve(host: Any, *arguments: Any, **more: Any) -> Any:
        return real("127.0.0.1" if str(host).endswith(".googleapis.com") else host, *arguments, **more)

    return resolve

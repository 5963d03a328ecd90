"""Custom roles and impersonation, by raw requests and by Google's own client."""

from __future__ import annotations

import itertools

import pytest
from cloud_front import NUMBER, PROJECT, CloudFront

from rehearsal.cloud.services.iam import REUSE_S, UNDELETE_S

_numbers = itertools.count()
P, ALICE = f"projects/{PROJECT}", "alice@example.com"
ROLES = f"iam.googleapis.com/v1/{P}/roles"
ACCOUNTS = f"iam.googleapis.com/v1/{P}/serviceAccounts"
NETWORKS = f"compute.googleapis.com/compute/v1/{P}/global/networks"
READS = ["compute.networks.list", "compute.networks.get"]


@pytest.fixture(scope="module", autouse=True)
def unwatched(cloud: CloudFront) -> None:
    """Without the evaluation of alert policies every minute: these tests jump over weeks."""
    cloud.loop.call_soon_threadsafe(cloud.unwatch)


@pytest.fixture(name="role")
def _role(cloud: CloudFront) -> str:
    """The name of a role that Alice has on the project."""
    role_id = f"reader_{next(_numbers)}"
    made = cloud.request(
        "POST", ROLES, {"roleId": role_id, "role": {"title": "R", "includedPermissions": READS}}
    )
    assert made.status == 200, made.body
    name = str(made.json["name"])
    assert name == f"{P}/roles/{role_id}"
    policy = cloud.iam.policy(P)
    policy["bindings"] = [{"role": "roles/owner", "members": ["user:owner@example.com"]}]
    policy["bindings"].append({"role": name, "members": [f"user:{ALICE}"]})
    cloud.iam.set_policy(P, policy)
    return name


def lists(cloud: CloudFront) -> bool:
    return cloud.request("GET", NETWORKS, token=cloud.token_of(ALICE)).status == 200


def test_a_role_grants_what_it_holds_by_now(cloud: CloudFront, role: str) -> None:
    url = f"iam.googleapis.com/v1/{role}"
    assert lists(cloud)
    changed = cloud.request(
        "PATCH", f"{url}?updateMask=includedPermissions", {"includedPermissions": READS[1:]}
    )
    assert changed.json["includedPermissions"] == READS[1:]
    assert not lists(cloud)
    cloud.request("PATCH", url, {"includedPermissions": READS, "stage": "DISABLED"})
    assert not lists(cloud), "a disabled role grants nothing"
    cloud.request("PATCH", url, {"stage": "GA"})
    assert lists(cloud)
    assert cloud.request("GET", url).json["title"] == "R"


def test_a_deleted_role_grants_nothing_and_comes_back_for_a_week(cloud: CloudFront, role: str) -> None:
    url, role_id = f"iam.googleapis.com/v1/{role}", role.rpartition("/")[2]
    assert cloud.request("DELETE", url).json["deleted"] is True
    assert not lists(cloud)
    assert role not in [item["name"] for item in cloud.request("GET", ROLES).json.get("roles", ())]
    shown = cloud.request("GET", f"{ROLES}?showDeleted=true&view=FULL").json["roles"]
    assert [item["includedPermissions"] for item in shown if item["name"] == role] == [READS]
    for method, path, body in (
        ("DELETE", url, None),
        ("PATCH", url, {"title": "other"}),
        ("POST", ROLES, {"roleId": role_id, "role": {"title": "again"}}),
    ):
        reply = cloud.request(method, path, body)
        assert (reply.status, reply.json["error"]["status"]) == (400, "FAILED_PRECONDITION"), reply.body
    policy = cloud.iam.policy(P)
    cloud.iam.set_policy(P, policy)  # it may stay where it is
    with pytest.raises(Exception, match="does not exist in the resource's hierarchy"):
        cloud.iam.set_policy("projects/_/buckets/b", {"bindings": policy["bindings"][1:]})
    cloud.call(cloud.world.clock.jump(UNDELETE_S - 3600))
    assert "deleted" not in cloud.request("POST", f"{url}:undelete", {}).json
    assert lists(cloud)


def test_after_a_week_a_deleted_role_is_gone_and_its_id_later(cloud: CloudFront, role: str) -> None:
    url, role_id = f"iam.googleapis.com/v1/{role}", role.rpartition("/")[2]
    cloud.request("DELETE", url)
    cloud.call(cloud.world.clock.jump(UNDELETE_S))
    assert cloud.request("POST", f"{url}:undelete", {}).status == 404
    assert role not in [binding["role"] for binding in cloud.iam.policy(P)["bindings"]]
    again = {"roleId": role_id, "role": {"title": "again"}}
    assert "marked for deletion" in cloud.request("POST", ROLES, again).error
    cloud.call(cloud.world.clock.jump(REUSE_S - UNDELETE_S))
    assert cloud.request("POST", ROLES, again).status == 200


@pytest.mark.parametrize(
    ("role_id", "role", "message"),
    [
        ("with-hyphen", {"title": "t"}, "must match"),
        ("ab", {"title": "t"}, "must match"),
        ("fine", {"title": "t" * 101}, "100 bytes"),
        ("fine", {"includedPermissions": ["tpu.*"]}, "Permission tpu.* is not valid"),
        ("fine", {"name": "n"}, "must not be set"),
        ("fine", {"permissions": []}, "Unknown name"),
    ],
)
def test_roles_that_google_would_refuse(
    cloud: CloudFront, role_id: str, role: dict[str, object], message: str
) -> None:
    reply = cloud.request("POST", ROLES, {"roleId": role_id, "role": role})
    assert (reply.status, message in reply.error) == (400, True), reply.body


def test_a_stale_etag_and_another_of_the_same_id(cloud: CloudFront, role: str) -> None:
    url = f"iam.googleapis.com/v1/{role}"
    stale = cloud.request("GET", url).json["etag"]
    assert cloud.request("PATCH", url, {"title": "one", "etag": stale}).status == 200
    assert cloud.request("PATCH", url, {"title": "two", "etag": stale}).status == 409
    same = {"roleId": role.rpartition("/")[2], "role": {"title": "t"}}
    assert cloud.request("POST", ROLES, same).status == 409
    assert cloud.request("POST", ROLES, same, token=cloud.token_of(ALICE)).status == 403


def test_impersonation_is_granted_to_nobody_by_owning_the_project(cloud: CloudFront) -> None:
    name = f"worker-{next(_numbers)}"
    email = cloud.request("POST", ACCOUNTS, {"accountId": name}).json["email"]
    url = f"iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{email}:generateAccessToken"
    mapping = {"scope": ["https://www.googleapis.com/auth/cloud-platform"], "lifetime": "600s"}
    assert cloud.request("POST", url, mapping).status == 403
    token_creator = {"role": "roles/iam.serviceAccountTokenCreator", "members": ["user:owner@example.com"]}
    cloud.iam.set_policy(f"{P}/serviceAccounts/{email}", {"bindings": [token_creator]})
    token = cloud.request("POST", url, mapping).json["accessToken"]
    output = cloud.request("GET", "oauth2.googleapis.com/tokeninfo?access_token=" + token, token="").json
    assert (output["email"], int(output["expires_in"]) <= 600) == (email, True)
    for wrong, status in (
        ({}, 400),
        ({**mapping, "lifetime": "7200s"}, 400),
        ({**mapping, "delegates": ["projects/-/serviceAccounts/x"]}, 501),
    ):
        assert cloud.request("POST", url, wrong).status == status
    assert NUMBER not in url


@pytest.mark.parametrize(
    ("permission", "status"),
    [
        ("tpu.nodes.get", 200),
        ("tpu.nodes.crate", 400),
        ("nodes", 400),
        ("billing.budgets.get", 400),
        ("resourcemanager.organizations.get", 400),
        ("spanner.instances.get", 501),
    ],
)
def test_a_projects_role_holds_only_what_a_project_can_grant(
    cloud: CloudFront, permission: str, status: int
) -> None:
    role = {"title": "R", "includedPermissions": [permission]}
    reply = cloud.request("POST", ROLES, {"roleId": f"holder_{next(_numbers)}", "role": role})
    assert reply.status == status
    assert status != 400 or reply.error == f"Permission {permission} is not valid."

"""Tokens, policies, conditions, propagation."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.cloud.iam import Iam
from rehearsal.cloud.roles import ROLES
from rehearsal.cloud.service import ApiError, Lags, NotEmulatedError, World

PROJECT, OWNER, ALICE = "wire-test", "owner@example.com", "alice@example.com"
BUCKET = "projects/_/buckets/b"
OBJECT = f"{BUCKET}/objects/data/x"


class StillClock:
    """A clock that a test moves."""

    rate = 1.0

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time

    def rfc3339(self) -> str:
        return str(self.time)

    async def sleep(self, virtual_s: float) -> None:
        self.time += virtual_s


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def iam(clock: StillClock) -> Iam:
    world = World(PROJECT, "123", clock, lags=Lags(grant_s=7, account_s=0), monotonic_s=clock.now)
    iam = Iam(world, OWNER)
    for name in ("sa-one", "sa-two"):
        email = account(name)
        world.directory[f"projects/{PROJECT}/serviceAccounts/{email}"] = {"email": email}
    iam.create_bucket(BUCKET)
    return iam


def account(name: str) -> str:
    return f"{name}@{PROJECT}.iam.gserviceaccount.com"


def grant(iam: Iam, resource: str, role: str, *members: str, **more: Any) -> dict[str, Any]:
    policy = iam.policy(resource)
    policy["bindings"].append({"role": role, "members": list(members), **more})
    policy["version"] = 3
    return iam.set_policy(resource, policy)


def test_the_owner_may_do_everything_in_the_project(iam: Iam) -> None:
    assert iam.allowed(OWNER, "tpu.nodes.create", f"projects/{PROJECT}/locations/z/nodes/n")
    assert iam.allowed(
        OWNER, "iam.serviceAccounts.actAs", f"projects/123/serviceAccounts/{account('sa-one')}"
    )
    assert iam.allowed(OWNER, "storage.objects.create", OBJECT), "by the bucket's projectOwner binding"
    assert not iam.allowed(OWNER, "tpu.nodes.create", "projects/other/locations/z/nodes/n")
    assert not iam.allowed(ALICE, "tpu.nodes.get", f"projects/{PROJECT}/locations/z/nodes/n")


def test_the_owner_has_no_object_access_without_the_buckets_own_binding(iam: Iam) -> None:
    iam.create("projects/_/buckets/bare")
    assert iam.allowed(OWNER, "storage.buckets.delete", "projects/_/buckets/bare")
    assert not iam.allowed(OWNER, "storage.objects.get", "projects/_/buckets/bare/objects/x")


def test_a_grant_holds_only_after_propagation(iam: Iam, clock: StillClock) -> None:
    grant(iam, BUCKET, "roles/storage.objectUser", f"serviceAccount:{account('sa-one')}")
    clock.time += 6.9
    assert not iam.allowed(account("sa-one"), "storage.objects.create", OBJECT)
    clock.time += 0.2
    assert iam.allowed(account("sa-one"), "storage.objects.create", OBJECT)
    assert not iam.allowed(account("sa-two"), "storage.objects.create", OBJECT)
    assert not iam.allowed(account("sa-one"), "storage.buckets.get", BUCKET)


def test_a_revocation_holds_only_after_propagation(iam: Iam, clock: StillClock) -> None:
    first = iam.policy(BUCKET)
    grant(iam, BUCKET, "roles/storage.objectViewer", f"user:{ALICE}")
    clock.time += 10
    iam.set_policy(BUCKET, first | {"etag": iam.policy(BUCKET)["etag"]})
    assert iam.allowed(ALICE, "storage.objects.get", OBJECT)
    clock.time += 7
    assert not iam.allowed(ALICE, "storage.objects.get", OBJECT)


def test_a_grant_and_its_revocation_take_effect_in_their_order(iam: Iam, clock: StillClock) -> None:
    first = iam.policy(BUCKET)
    grant(iam, BUCKET, "roles/storage.objectViewer", f"user:{ALICE}")
    clock.time += 3
    iam.set_policy(BUCKET, first | {"etag": iam.policy(BUCKET)["etag"]})
    seen = []
    for _ in range(12):
        seen.append(iam.allowed(ALICE, "storage.objects.get", OBJECT))
        clock.time += 1
    assert seen == [False] * 4 + [True] * 3 + [False] * 5


def test_a_policy_on_the_project_holds_for_what_is_inside(iam: Iam, clock: StillClock) -> None:
    grant(iam, f"projects/{PROJECT}", "roles/storage.objectViewer", f"user:{ALICE}")
    clock.time += 7
    assert iam.allowed(ALICE, "storage.objects.get", OBJECT)
    assert not iam.allowed(ALICE, "storage.objects.create", OBJECT)


def test_a_stale_etag_is_refused_and_none_overwrites(iam: Iam) -> None:
    policy = iam.policy(BUCKET)
    iam.set_policy(BUCKET, policy)
    with pytest.raises(ApiError, match="concurrent policy changes") as caught:
        iam.set_policy(BUCKET, policy)
    assert caught.value.code == 409
    del policy["etag"]
    assert iam.set_policy(BUCKET, policy)["etag"] == iam.policy(BUCKET)["etag"]


def test_a_condition_narrows_a_grant(iam: Iam, clock: StillClock) -> None:
    condition = {"title": "data", "expression": f"resource.name.startsWith('{BUCKET}/objects/data/')"}
    policy = grant(iam, BUCKET, "roles/storage.objectViewer", f"user:{ALICE}", condition=condition)
    assert policy["version"] == 3
    clock.time += 7
    assert iam.allowed(ALICE, "storage.objects.get", OBJECT)
    assert not iam.allowed(ALICE, "storage.objects.get", f"{BUCKET}/objects/other/x")


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        (f"resource.name == '{OBJECT}'", True),
        (f"resource.name != '{OBJECT}'", False),
        ('resource.type == "storage.googleapis.com/Object"', True),
        ('resource.type == "storage.googleapis.com/Bucket"', False),
        ("resource.service == 'storage.googleapis.com' && resource.name.endsWith('/x')", True),
        ("resource.service == 'storage.googleapis.com' && resource.name.endsWith('/y')", False),
        ("resource.name.endsWith('/y') || resource.name.endsWith('/x')", True),
        ("!resource.name.startsWith('projects/')", False),
    ],
)
def test_conditions_are_evaluated(iam: Iam, clock: StillClock, expression: str, holds: bool) -> None:
    condition = {"title": "t", "expression": expression}
    grant(iam, BUCKET, "roles/storage.objectViewer", f"user:{ALICE}", condition=condition)
    clock.time += 7
    assert iam.allowed(ALICE, "storage.objects.get", OBJECT) is holds


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ({"role": "roles/tpu.emperor", "members": ["user:a@b.c"]}, "roles/tpu.emperor is not supported"),
        ({"role": "roles/tpu.admin", "members": ["alice@example.com"]}, "unknown type"),
        ({"role": "roles/tpu.admin", "members": ["serviceAccount:" + account("nobody")]}, "does not exist"),
    ],
)
def test_policies_that_google_would_refuse_are_refused(
    iam: Iam, binding: dict[str, Any], message: str
) -> None:
    before = iam.policy(BUCKET)
    with pytest.raises(ApiError, match=message) as caught:
        iam.set_policy(BUCKET, {**before, "version": 3, "bindings": [binding]})
    assert caught.value.code == 400
    assert iam.policy(BUCKET) == before


def test_a_condition_that_nobody_evaluates_is_not_stored(iam: Iam) -> None:
    binding = {"role": "roles/tpu.admin", "members": ["user:a@b.c"], "condition": {"expression": "request.x"}}
    with pytest.raises(NotEmulatedError, match=r"request\.x"):
        iam.set_policy(BUCKET, {"version": 3, "bindings": [binding]})


def test_a_condition_needs_version_3(iam: Iam) -> None:
    binding = {"role": "roles/tpu.admin", "members": ["user:a@b.c"], "condition": {"expression": "true"}}
    with pytest.raises(ApiError, match="must have version 3"):
        iam.set_policy(BUCKET, {"version": 1, "bindings": [binding]})


def test_a_deleted_accounts_memberships_end_with_it(iam: Iam, clock: StillClock) -> None:
    email = account("sa-one")
    grant(iam, BUCKET, "roles/storage.objectUser", f"serviceAccount:{email}")
    clock.time += 7
    iam.forget_account(email, "1234")
    members = [who for binding in iam.policy(BUCKET)["bindings"] for who in binding["members"]]
    assert f"deleted:serviceAccount:{email}?uid=1234" in members
    assert not iam.allowed(email, "storage.objects.get", OBJECT)
    iam.set_policy(BUCKET, iam.policy(BUCKET))


def test_tokens_end(iam: Iam, clock: StillClock) -> None:
    token = iam.mint(OWNER, lifetime_s=60)
    clock.time += 59
    assert (iam.find_token(token.value), iam.left_s(token)) == (token, 1)
    assert iam.find_token("ya29.forged") is None
    clock.time += 1
    assert iam.find_token(token.value) is None


def test_a_service_account_that_is_gone_has_no_tokens(iam: Iam) -> None:
    token = iam.mint(account("sa-one"))
    iam._world.directory.clear()
    assert iam.find_token(token.value) is None
    with pytest.raises(ApiError) as caught:
        iam.mint(account("sa-one"))
    assert caught.value.code == 404


@pytest.mark.parametrize(
    ("permission", "resource", "text"),
    [
        (
            "compute.networks.create",
            "projects/p/global/networks/n",
            "Required 'compute.networks.create' permission for 'projects/p/global/networks/n'",
        ),
        ("storage.objects.get", OBJECT, f"{ALICE} does not have storage.objects.get access"),
        (
            "tpu.nodes.create",
            "projects/p/locations/z/nodes/n",
            "denied on resource '//tpu.googleapis.com/projects/p/locations/z/nodes/n'",
        ),
    ],
)
def test_each_api_refuses_in_its_own_words(iam: Iam, permission: str, resource: str, text: str) -> None:
    with pytest.raises(ApiError) as caught:
        iam.require(ALICE, permission, resource)
    assert caught.value.code == 403
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("role", "permission", "held"),
    [
        ("roles/storage.objectUser", "storage.objects.delete", True),
        ("roles/storage.objectUser", "storage.objects.setIamPolicy", False),
        ("roles/storage.objectViewer", "storage.objects.create", False),
        ("roles/storage.legacyBucketReader", "storage.buckets.get", True),
        ("roles/storage.bucketViewer", "storage.objects.get", False),
        ("roles/logging.logWriter", "logging.logEntries.create", True),
        ("roles/monitoring.metricWriter", "monitoring.timeSeries.create", True),
        ("roles/tpu.admin", "tpu.nodes.delete", True),
        ("roles/tpu.admin", "iam.serviceAccounts.actAs", False),
        ("roles/iam.serviceAccountUser", "iam.serviceAccounts.actAs", True),
        ("roles/compute.networkUser", "compute.subnetworks.use", True),
        ("roles/compute.networkUser", "compute.networks.delete", False),
        ("roles/cloudkms.cryptoKeyEncrypterDecrypter", "cloudkms.cryptoKeyVersions.useToEncrypt", True),
        ("roles/cloudkms.admin", "cloudkms.cryptoKeyVersions.useToDecrypt", False),
        ("roles/editor", "resourcemanager.projects.setIamPolicy", False),
        ("roles/editor", "tpu.nodes.create", True),
        ("roles/viewer", "tpu.nodes.get", True),
        ("roles/viewer", "tpu.nodes.delete", False),
    ],
)
def test_roles_hold_what_googles_do(
    iam: Iam, clock: StillClock, role: str, permission: str, held: bool
) -> None:
    grant(iam, f"projects/{PROJECT}", role, f"user:{ALICE}")
    clock.time += 7
    assert iam.test(ALICE, [permission], f"projects/{PROJECT}") == ([permission] if held else [])


def test_every_role_has_patterns() -> None:
    assert all(patterns and all(patterns) for patterns in ROLES.values())

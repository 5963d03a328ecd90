"""Tokens, policies, conditions, propagation."""

from __future__ import annotations

from typing import Any

import pytest

from rehearsal.cloud.core.errors import ApiError, NotEmulatedError
from rehearsal.cloud.core.world import Lags, World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.iam.roles import grants

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
def directory() -> dict[str, Any]:
    return {}


@pytest.fixture
def iam(clock: StillClock, directory: dict[str, Any]) -> Iam:
    lags = Lags(grant_s=7, account_s=0)
    world = World(PROJECT, "123", clock, lags=lags, monotonic_s=clock.now, directory=directory)
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


def test_a_stale_etag_is_refused_and_none_overwrites(iam: Iam) -> None:
    policy = iam.policy(BUCKET)
    iam.set_policy(BUCKET, policy)
    with pytest.raises(ApiError, match="concurrent policy changes") as caught:
        iam.set_policy(BUCKET, policy)
    assert caught.value.code == 409
    del policy["etag"]
    assert iam.set_policy(BUCKET, policy)["etag"] == iam.policy(BUCKET)["etag"]


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
        (
            {"role": "roles/tpu.viewer_withcond_2b17cc25d2cd9e2c54d8", "members": ["user:a@b.c"]},
            "is not supported",
        ),
        ({"role": "roles/storage.admin_withcond_2b17", "members": ["user:a@b.c"]}, "is not supported"),
        ({"role": "tpu.admin", "members": ["user:a@b.c"]}, "tpu.admin is not supported"),
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


@pytest.mark.parametrize(
    "binding",
    [
        {"role": "roles/tpu.admin", "condition": {"title": "t", "expression": "request.x"}},
        {"role": "roles/spanner.viewer"},
        {"role": "organizations/1/roles/x"},
    ],
)
def test_a_grant_that_nobody_here_can_evaluate_is_not_stored(iam: Iam, binding: dict[str, Any]) -> None:
    before = iam.policy(BUCKET)
    with pytest.raises(NotEmulatedError):
        iam.set_policy(BUCKET, {"version": 3, "bindings": [{**binding, "members": ["user:a@b.c"]}]})
    assert iam.policy(BUCKET) == before


@pytest.mark.parametrize("version", [0, 1])
def test_conditions_are_shown_to_who_asks_for_version_3_alone(iam: Iam, version: int) -> None:
    condition = {"title": "data", "expression": "resource.name.endsWith('x')"}
    grant(iam, BUCKET, "roles/storage.objectViewer", f"user:{ALICE}", condition=condition)
    older = iam.shown(BUCKET, version)
    assert (older["version"], [binding for binding in older["bindings"] if "condition" in binding]) == (1, [])
    (renamed,) = [binding["role"] for binding in older["bindings"] if f"user:{ALICE}" in binding["members"]]
    assert renamed.startswith("roles/storage.objectViewer_withcond_")
    assert iam.shown(BUCKET, 3) == iam.policy(BUCKET)
    with pytest.raises(ApiError, match="must be 0, 1 or 3"):
        iam.shown(BUCKET, 2)


def test_what_is_no_permission_is_refused_and_not_just_lacked(iam: Iam) -> None:
    iam.permissions.add("tpu.nodes.create")
    assert iam.test(ALICE, ["tpu.nodes.create"], f"projects/{PROJECT}") == []
    for wrong in ("bogus", "tpu.*", "tpu.nodes.", "Tpu.nodes.get", "tpu.nodes.crate"):
        with pytest.raises(ApiError, match="is not valid for this resource") as caught:
            iam.test(OWNER, ["tpu.nodes.create", wrong], f"projects/{PROJECT}")
        assert caught.value.code == 400
    with pytest.raises(NotEmulatedError, match=r"spanner\.instances\.get"):
        iam.test(OWNER, ["spanner.instances.get"], f"projects/{PROJECT}")


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


def test_a_service_account_that_is_gone_has_no_tokens(iam: Iam, directory: dict[str, Any]) -> None:
    token = iam.mint(account("sa-one"))
    directory.clear()
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
        *(
            (
                f"storage.{kind}s.get",
                of,
                f"does not have storage.{kind}s.get access to the Google Cloud Storage {kind}",
            )
            for kind, of in (("object", OBJECT), ("bucket", BUCKET))
        ),
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


def test_no_predefined_role_holds_what_google_keeps_apart() -> None:
    """Permissions that owning a project doesn't give, nor managing a service."""
    apart = {
        "storage.objects.get": {"roles/owner", "roles/editor", "roles/viewer", "roles/storage.bucketViewer"},
        "iam.serviceAccounts.getAccessToken": {
            "roles/owner",
            "roles/editor",
            "roles/iam.serviceAccountAdmin",
        },
        "iam.serviceAccounts.actAs": {
            "roles/tpu.admin",
            "roles/compute.admin",
            "roles/iam.serviceAccountAdmin",
        },
        "resourcemanager.projects.setIamPolicy": {"roles/editor", "roles/viewer", "roles/iam.roleAdmin"},
        "cloudkms.cryptoKeyVersions.useToDecrypt": {"roles/editor", "roles/cloudkms.admin"},
        "storage.objects.setIamPolicy": {"roles/storage.objectUser", "roles/storage.objectCreator"},
        "compute.networks.delete": {"roles/compute.networkUser", "roles/compute.securityAdmin"},
        "tpu.nodes.delete": {"roles/viewer", "roles/tpu.viewer"},
    }
    wrong = [(role, item) for item, roles in apart.items() for role in sorted(roles) if grants(role, item)]
    assert wrong == []


def test_roles_of_services_that_are_not_served_are_granted(iam: Iam, clock: StillClock) -> None:
    grant(iam, f"projects/{PROJECT}", "roles/compute.osAdminLogin", f"user:{ALICE}")
    grant(iam, f"projects/{PROJECT}", "roles/artifactregistry.reader", "domain:example.com")
    clock.time += 7
    for permission, held in (
        ("compute.instances.osAdminLogin", True),
        ("artifactregistry.repositories.get", True),
        ("artifactregistry.repositories.uploadArtifacts", False),
        ("artifactregistry.repositories.getIamPolicy", False),
    ):
        assert iam.allowed(ALICE, permission, f"projects/{PROJECT}") is held, permission


def test_what_an_account_was_asked_for_is_kept_with_what_granted_it(clock: StillClock) -> None:
    project, later = f"projects/{PROJECT}", "projects/_/buckets/later"
    held = [
        ("roles/tpu.viewer", project),
        ("roles/storage.objectViewer", later),
        ("roles/tpu.admin", project),
    ]
    iam = Iam(World(PROJECT, "123", clock), OWNER, roles={ALICE: held})
    iam.create_bucket(later)
    iam.require(ALICE, "tpu.nodes.get", project)
    iam.require(ALICE, "storage.objects.get", f"{later}/objects/x")
    with pytest.raises(ApiError, match=r"storage\.objects\.create"):
        iam.require(ALICE, "storage.objects.create", f"{later}/objects/x")
    with pytest.raises(ApiError, match=r"the serviceusage\.services\.use permission"):
        iam.require_use(ALICE, PROJECT)
    iam.require(OWNER, "tpu.nodes.get", project)  # nobody who is recorded
    assert dict(iam.access) == {
        (ALICE, "tpu.nodes.get", (("roles/tpu.admin", project), ("roles/tpu.viewer", project))): 1,
        (ALICE, "storage.objects.get", (("roles/storage.objectViewer", later),)): 1,
        (ALICE, "storage.objects.create", ()): 1,
        (ALICE, "serviceusage.services.use", ()): 1,
    }


@pytest.mark.parametrize(
    ("role", "holds", "lacks"),
    [
        ("roles/compute.networkAdmin", "compute.routers.update", "compute.firewalls.create"),
        ("roles/compute.securityAdmin", "compute.firewalls.create", "compute.networks.create"),
        ("roles/compute.storageAdmin", "compute.snapshots.useReadOnly", "compute.zoneOperations.delete"),
        ("roles/compute.osAdminLogin", "compute.projects.get", "iap.tunnelInstances.accessViaIAP"),
        ("roles/tpu.viewer", "tpu.nodes.get", "tpu.nodes.update"),
        ("roles/storage.objectUser", "storage.objects.create", "storage.buckets.get"),
    ],
)
def test_a_role_holds_what_googles_holds(role: str, holds: str, lacks: str) -> None:
    """https://cloud.google.com/iam/docs/roles-permissions"""
    assert (grants(role, holds), grants(role, lacks)) == (True, False)


def test_a_group_is_its_members_and_those_of_groups_in_it(iam: Iam, clock: StillClock) -> None:
    groups = {"all@example.com": ["ml@example.com"], "ml@example.com": [ALICE, "all@example.com"]}
    iam._world.groups = groups
    grant(iam, BUCKET, "roles/storage.objectViewer", "group:all@example.com")
    assert not iam.allowed(ALICE, "storage.objects.get", OBJECT)
    clock.time += 7
    assert iam.allowed(ALICE, "storage.objects.get", OBJECT)
    assert not iam.allowed("bob@example.com", "storage.objects.get", OBJECT)
    groups["ml@example.com"].remove(ALICE)
    assert not iam.allowed(ALICE, "storage.objects.get", OBJECT)

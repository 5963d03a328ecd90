"""Declarations of the storage layer."""

from typing import Any

import pulumi
import pytest

from infra.google.role import ON_NODES
from infra.layers.storage.identity import PROJECT_ROLES
from tests.infra.recording import PROJECT_NUMBER, UPSTREAM, Registration, run

BUCKET = "gcp:storage/bucket:Bucket"
CONTROLLER = "my-project-checkpoints-fleet"
NAME, STEPS = "my-project-checkpoints", "my-project-checkpoints-steps"
MEMBER = "serviceAccount:tpu-training@my-project.iam.gserviceaccount.com"


def checkpoints(changes: dict[str, Any] | None = None, *, preview: bool = False) -> Registration:
    return run("storage", changes, preview=preview).named(BUCKET, "my-project-checkpoints")


LEFT: dict[str, Any] = {
    "location": "US-EAST5",
    "storageClass": "STANDARD",
    "uniformBucketLevelAccess": True,
    "publicAccessPrevention": "enforced",
    "versionings": [{"enabled": True}],
    "softDeletePolicies": [{"retentionDurationSeconds": 7 * 86400}],
}
"""A bucket as a destroyed stack of these settings left it."""


def taken_over(
    *, preview: bool = False, read: dict[str, Any] = LEFT, up: dict[str, Any] | None = None
) -> Registration:
    recording = run("storage", {"storage:importBucket": True}, preview=preview, read=read, up=up)
    return recording.named(BUCKET, NAME)


@pytest.mark.parametrize("preview", [True, False])
def test_the_bucket_keeps_what_is_in_it(preview: bool) -> None:
    bucket = checkpoints({"storage:labels": {"data": "checkpoints"}}, preview=preview)
    assert bucket.inputs == {
        "name": "my-project-checkpoints",
        "location": "US-EAST5",
        "storageClass": "STANDARD",
        "uniformBucketLevelAccess": True,
        "publicAccessPrevention": "enforced",
        "forceDestroy": False,
        "versioning": {"enabled": True},
        "softDeletePolicy": {"retentionDurationSeconds": 7 * 86400},
        "lifecycleRules": [
            {
                "action": {"type": "Delete"},
                "condition": {"daysSinceNoncurrentTime": 14, "withState": "ARCHIVED"},
            },
            {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}},
        ],
        "labels": {"data": "checkpoints"},
    }
    assert bucket.options["protect"] is True
    assert bucket.options["retainOnDelete"] is True


@pytest.mark.parametrize("preview", [True, False])
def test_where_jobs_save_nothing_is_kept_that_they_remove(preview: bool) -> None:
    changes = {"storage:storageClass": "NEARLINE", "storage:softDeleteDays": 30}
    steps = run("storage", changes, preview=preview).named(BUCKET, STEPS)
    assert steps.inputs["versioning"] == {"enabled": False}
    assert steps.inputs["softDeletePolicy"] == {"retentionDurationSeconds": 0}
    assert steps.inputs["storageClass"] == "STANDARD", "the others bill an object for a month at least"
    for key in ("location", "uniformBucketLevelAccess", "publicAccessPrevention", "forceDestroy"):
        assert steps.inputs[key] == run("storage", preview=preview).named(BUCKET, NAME).inputs[key]
    assert (steps.options["protect"], steps.options["retainOnDelete"]) == (True, True)
    assert not steps.options.get("importId")
    left = {**LEFT, "versionings": [], "softDeletePolicies": [{"retentionDurationSeconds": 0}]}
    imported = run("storage", {"storage:importStepsBucket": True}, preview=preview, read=left)
    assert imported.named(BUCKET, STEPS).options["importId"] == f"my-project/{STEPS}"
    assert not imported.named(BUCKET, NAME).options.get("importId")


def test_a_bucket_that_was_left_behind_is_taken_over_and_only_when_told() -> None:
    imported = taken_over()
    assert imported.options["importId"] == "my-project/my-project-checkpoints"
    assert (imported.options["protect"], imported.options["retainOnDelete"]) == (True, True)
    assert not checkpoints().options.get("importId")


def test_an_import_leaves_what_it_cannot_change_to_the_next_update() -> None:
    assert taken_over().options["ignoreChanges"] == ["lifecycleRules", "labels"]
    up = {**UPSTREAM, "storage": {**UPSTREAM["storage"], "bucketName": NAME}}
    held = taken_over(up=up, read={}).options
    assert not {"ignoreChanges", "importId"} & set(held), "the stack has it: nothing is compared"


@pytest.mark.parametrize("preview", [True, False])
@pytest.mark.parametrize(
    ("read", "value", "fix"),
    [
        ({"location": "US-CENTRAL1"}, "location us-central1", "a bucket never moves"),
        ({"uniformBucketLevelAccess": False}, "uniform access False", "--uniform-bucket-level-access"),
        ({"publicAccessPrevention": "inherited"}, "public access prevention", "--public-access-prevention"),
        ({"versionings": []}, "versioning False", "--versioning"),
        ({"softDeletePolicies": []}, "soft delete, seconds 0", "--soft-delete-duration=604800s"),
        ({"storageClass": "NEARLINE"}, "class NEARLINE", "--default-storage-class=STANDARD"),
        ({"hierarchicalNamespaces": [{"enabled": True}]}, "folders True", "name another bucket"),
        ({"encryptions": [{"defaultKmsKeyName": "k"}]}, "key k", "--clear-default-encryption-key"),
        ({"projectNumber": 4711}, "of project number 4711", "--filter=projectNumber=4711"),
    ],
)
def test_a_bucket_that_differs_is_not_taken_over(
    read: dict[str, Any], value: str, fix: str, preview: bool
) -> None:
    with pytest.raises(pulumi.RunError) as refused:
        taken_over(preview=preview, read={**LEFT, **read})
    assert f"storage:bucketName = {NAME}, {value}" in str(refused.value)
    assert fix in str(refused.value).partition("fix: ")[2]


def test_a_bucket_that_is_not_there_is_not_taken_over() -> None:
    message = rf"(?s){NAME}, which can't be looked up.*fix: remove storage:importBucket\b"
    with pytest.raises(pulumi.RunError, match=message):
        run("storage", {"storage:importBucket": True}, raw_location="")


def test_a_bucket_with_folders_has_no_versions() -> None:
    changes = {"storage:versioning": False, "storage:hierarchicalNamespace": True}
    bucket = checkpoints(changes)
    assert bucket.inputs["hierarchicalNamespace"] == {"enabled": True}
    assert "versioning" not in bucket.inputs
    assert [rule["action"]["type"] for rule in bucket.inputs["lifecycleRules"]] == [
        "AbortIncompleteMultipartUpload"
    ]
    assert bucket.inputs["softDeletePolicy"] == {"retentionDurationSeconds": 7 * 86400}


def test_versioning_switched_off_is_said_and_not_left_out() -> None:
    bucket = checkpoints({"storage:versioning": False})
    assert bucket.inputs["versioning"] == {"enabled": False}
    # What was versioned before goes in its time all the same.
    assert "Delete" in {rule["action"]["type"] for rule in bucket.inputs["lifecycleRules"]}


@pytest.mark.parametrize(
    "folders", [{}, {"storage:versioning": False, "storage:hierarchicalNamespace": True}]
)
def test_old_token_shards_are_removed_and_nothing_else_of_the_bucket(folders: dict[str, Any]) -> None:
    shards = {"action": {"type": "Delete"}, "condition": {"age": 30, "matchesPrefixes": ["tokens/"]}}
    assert checkpoints({**folders, "storage:tokensDays": 30}).inputs["lifecycleRules"][-1] == shards
    assert shards["action"] not in [
        rule["action"] for rule in checkpoints(folders).inputs["lifecycleRules"]
        if "withState" not in rule["condition"]
    ]  # fmt: skip


def test_a_key_of_the_users_own() -> None:
    key = "projects/my-project/locations/us-east5/keyRings/r/cryptoKeys/k"
    recording = run("storage", {"storage:kmsKey": key})
    encryption = [resource.inputs["encryption"] for resource in recording.of(BUCKET)]
    assert encryption == [{"defaultKmsKeyName": key}] * 3
    assert recording.named("gcp:projects/service:Service", "cloudkms.googleapis.com")


@pytest.mark.parametrize("preview", [True, False])
def test_services_are_never_switched_off(preview: bool) -> None:
    services = run("storage", preview=preview).of("gcp:projects/service:Service")
    assert sorted(service.inputs["service"] for service in services) == [
        "cloudresourcemanager.googleapis.com",
        "compute.googleapis.com",
        "iam.googleapis.com",
        "iap.googleapis.com",
        "logging.googleapis.com",
        "monitoring.googleapis.com",
        "storage.googleapis.com",
        "tpu.googleapis.com",
    ]
    assert all(service.inputs["disableOnDestroy"] is False for service in services)
    without_iap = run("storage", {"network:sshSourceRanges": ["203.0.113.0/24"]})
    assert "iap.googleapis.com" not in {resource.name for resource in without_iap.resources}


@pytest.mark.parametrize("preview", [True, False])
def test_the_account_is_granted_exactly_this(preview: bool) -> None:
    recording = run("storage", preview=preview)
    on_bucket = recording.of("gcp:storage/bucketIAMMember:BucketIAMMember")
    on_project = recording.of("gcp:projects/iAMMember:IAMMember")
    assert [
        (grant.inputs["bucket"], grant.inputs["role"], grant.inputs["member"]) for grant in on_bucket
    ] == [
        (NAME, "roles/storage.legacyBucketReader", MEMBER),
        (NAME, "roles/storage.objectUser", MEMBER),
        (STEPS, "roles/storage.legacyBucketReader", MEMBER),
        (STEPS, "roles/storage.objectUser", MEMBER),
    ]
    assert [
        (grant.inputs["project"], grant.inputs["role"], grant.inputs["member"]) for grant in on_project
    ] == [
        ("my-project", "roles/logging.logWriter", MEMBER),
        ("my-project", "roles/monitoring.metricWriter", MEMBER),
    ]
    assert not recording.of("gcp:serviceaccount/iAMMember:IAMMember")
    account = recording.only("gcp:serviceaccount/account:Account")
    assert account.inputs == {
        "accountId": "tpu-training",
        "displayName": "TPU hosts",
        "description": "Runs the training jobs on TPU slices",
    }
    waits = [
        f"::{account.name}" in "".join(grant.options["dependencies"]) for grant in on_bucket + on_project
    ]
    assert waits == [True] * 6


def test_hosts_write_to_a_tensorboard_where_there_is_one() -> None:
    board = "projects/my-project/locations/us-east5/tensorboards/1"
    recording = run("storage", {"storage:tensorboard": board})
    on_project = recording.of("gcp:projects/iAMMember:IAMMember")
    assert {grant.inputs["role"] for grant in on_project} == {*PROJECT_ROLES, "roles/aiplatform.user"}
    # The setting can be taken back: its grant isn't protected.
    assert [grant.inputs["role"] for grant in on_project if not grant.options.get("protect")] == [
        "roles/aiplatform.user"
    ]
    services = recording.of("gcp:projects/service:Service")
    assert "aiplatform.googleapis.com" in {service.inputs["service"] for service in services}


@pytest.mark.parametrize("preview", [True, False])
def test_every_component_waits_for_the_services(preview: bool) -> None:
    """And what is in it for the component, which is registered only then."""
    more = {"storage:controllerAccountId": "tpu-fleet", "storage:stateKeyRing": "pulumi"}
    done = run("storage", {**more, "storage:stateBucketName": "my-state"}, preview=preview)
    services = {resource.name for resource in done.of("gcp:projects/service:Service")}
    assert services
    components = {
        resource.name: resource for resource in done.resources if resource.type.startswith("tpu:storage:")
    }
    assert {"my-project-checkpoints", "my-state", "tpu-training", "tpu-fleet", "pulumi"} <= set(components)
    for name, item in components.items():
        if name != "services":
            assert {urn.rpartition("::")[2] for urn in item.options["dependencies"]} == services, name


@pytest.mark.parametrize("preview", [True, False])
def test_a_place_for_pulumis_state(preview: bool) -> None:
    changes = {"storage:stateBucketName": "my-project-pulumi", "storage:stateKeyRing": "pulumi"}
    recording = run("storage", changes, preview=preview)
    bucket = recording.named(BUCKET, "my-project-pulumi")
    assert bucket.inputs["versioning"] == {"enabled": True}
    assert (bucket.options["protect"], bucket.options["retainOnDelete"]) == (True, True)
    ring = recording.only("gcp:kms/keyRing:KeyRing")
    assert ring.inputs == {"name": "pulumi", "location": "us-east5"}
    key = recording.only("gcp:kms/cryptoKey:CryptoKey")
    assert key.inputs["rotationPeriod"] == "7776000s"
    assert (key.options["protect"], key.options["retainOnDelete"]) == (True, True)
    granted = {
        grant.inputs["bucket"] for grant in recording.of("gcp:storage/bucketIAMMember:BucketIAMMember")
    }
    assert granted == {NAME, STEPS}
    assert recording.exports["stateBackend"] == "gs://my-project-pulumi"
    if not preview:
        assert recording.exports["secretsProvider"] == "gcpkms://pulumi-secrets-id"


@pytest.mark.parametrize("preview", [True, False])
def test_the_controllers_bucket_is_granted_to_no_host(preview: bool) -> None:
    recording = run("storage", {"storage:labels": {"data": "state"}}, preview=preview)
    bucket = recording.named(BUCKET, CONTROLLER)
    assert bucket.inputs == {
        "name": CONTROLLER,
        "location": "US-EAST5",
        "storageClass": "STANDARD",
        "uniformBucketLevelAccess": True,
        "publicAccessPrevention": "enforced",
        "forceDestroy": False,
        "versioning": {"enabled": False},
        "softDeletePolicy": {"retentionDurationSeconds": 7 * 86400},
        "labels": {"data": "state"},
    }
    assert bucket.options["protect"] is True
    assert not bucket.options.get("retainOnDelete"), "a stack that comes back makes it anew"
    grants = recording.of("gcp:storage/bucketIAMMember:BucketIAMMember")
    assert CONTROLLER not in {grant.inputs["bucket"] for grant in grants}


@pytest.mark.parametrize("preview", [True, False])
def test_the_controllers_account_comes_with_its_role_and_grants(preview: bool) -> None:
    sre, email = "group:sre@example.com", "tpu-fleet@my-project.iam.gserviceaccount.com"
    with_it = {"storage:controllerAccountId": "tpu-fleet", "storage:controllerAccountUsers": [sre]}
    without, recording = run("storage", preview=preview), run("storage", with_it, preview=preview)
    before = {(resource.type, resource.name) for resource in without.resources}
    more = [resource for resource in recording.resources if (resource.type, resource.name) not in before]
    (role,) = [item for item in more if item.type.endswith("IAMCustomRole")]
    assert role.inputs["roleId"] == "tpu_fleet"
    assert sorted(role.inputs["permissions"]) == sorted(ON_NODES)
    assert {item.partition(".")[0] for item in ON_NODES} == {"tpu"}
    grants = [item for item in more if item.type.endswith("IAMMember")]
    assert len(grants) == 6, "tests/infra/engine/grants.txt has them"
    for grant in grants:  # Google refuses who grants to, or on, what isn't there
        after = " ".join(grant.options["dependencies"])
        assert all(name in after for name in ("::tpu-fleet", "::tpu-fleet-role", "::tpu-training")), grant
    (condition,) = [item.inputs["condition"] for item in grants if "condition" in item.inputs]
    assert condition["expression"] == (
        'resource.name.startsWith("projects/_/buckets/my-project-checkpoints/objects/bundles/manifests/") || '
        'resource.name.startsWith("projects/_/buckets/my-project-checkpoints/objects/bundles/blobs/") || '
        'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("boot/") || '
        'api.getAttribute("storage.googleapis.com/objectListPrefix", "").startsWith("heartbeats/")'
    )
    assert not [item.name for item in more if item.options.get("protect")], "it can be switched off"
    assert recording.named("gcp:projects/service:Service", "iamcredentials.googleapis.com")
    if not preview:
        assert recording.exports["controllerAccountEmail"] == email


def test_outputs() -> None:
    done = run("storage")
    enabled = [resource.inputs["service"] for resource in done.of("gcp:projects/service:Service")]
    assert len(enabled) >= 5
    assert done.exports == {
        "services": enabled,
        "bucketName": "my-project-checkpoints",
        "stepsBucketName": "my-project-checkpoints-steps",
        "serviceAccountEmail": "tpu-training@my-project.iam.gserviceaccount.com",
        "controllerBucketName": CONTROLLER,
        "projectNumber": PROJECT_NUMBER,
    }

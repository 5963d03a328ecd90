"""Accounts of the GKE layer: what nodes, pods and people are granted."""

import pytest

from infra.layers.gke.layer import LAYER
from rehearsal.cloud.iam.conditions import compile_condition
from tests.infra.layers.gke.test_gke_layer import BUCKET_MEMBER, BUCKETS, CLUSTER, NODES, POOL, TRAIN, up
from tests.infra.recording import PROJECT_NUMBER, Recording

ACCOUNT, ACT_AS = "gcp:serviceaccount/account:Account", "gcp:serviceaccount/iAMMember:IAMMember"
PROJECT_MEMBER = "gcp:projects/iAMMember:IAMMember"
PRINCIPAL = (
    f"principal://iam.googleapis.com/projects/{PROJECT_NUMBER}/locations/global/workloadIdentityPools/"
    "my-project.svc.id.goog/subject/ns/{}/sa/trainer"
)
ON_BUCKETS = ("roles/storage.legacyBucketReader", "roles/storage.objectUser")


def granted(recording: Recording, token: str, key: str) -> set[tuple[str, str, str]]:
    return {
        (resource.inputs[key], resource.inputs["role"], resource.inputs["member"])
        for resource in recording.of(token)
    }


def test_pods_are_granted_roles_on_the_buckets_and_none_of_storage_on_the_project() -> None:
    recording = up(namespaces=["vision", "speech"])
    members = [PRINCIPAL.format("vision"), PRINCIPAL.format("speech")]
    assert granted(recording, BUCKET_MEMBER, "bucket") == {
        (bucket, role, member) for bucket in BUCKETS for role in ON_BUCKETS for member in members
    }
    nodes = f"serviceAccount:{NODES}"
    assert granted(recording, PROJECT_MEMBER, "project") == {
        ("my-project", "roles/container.defaultNodeServiceAccount", nodes),
        *(("my-project", "roles/logging.logWriter", member) for member in members),
    }
    assert not recording.of(ACT_AS)
    assert [resource.inputs["accountId"] for resource in recording.of(ACCOUNT)] == ["tpu-gke-nodes"]


def test_whoever_brings_gke_up_may_see_the_jobs_on_a_pool_without_the_queue() -> None:
    """The guard of a pool asks the cluster for them."""
    held = {permission for role in LAYER.roles for permission in role.permissions}
    assert {"container.clusters.connect", "container.nodes.list", "container.pods.list"} <= held


def test_what_a_teams_jobs_save_is_the_teams() -> None:
    """By the condition on the grant, as the emulated IAM evaluates it."""
    (grant,) = [
        resource.inputs
        for resource in up(namespaces=["vision", "speech"]).of(BUCKET_MEMBER)
        if resource.name == "vision-checkpoints-objectUser"
    ]
    allowed = compile_condition(grant["condition"]["expression"])
    bucket = "projects/_/buckets/my-project-checkpoints"
    names = (
        "",
        "/objects/jobs/",
        "/objects/jobs/vision",
        "/objects/jobs/vision/a/state.npz",
        "/objects/runs/a/1",
        "/objects/bundles/b",
    )
    assert all(allowed(f"{bucket}{name}", "", frozenset()) for name in names)
    for name in ("speech/a/state.npz", "vision2/a", "visio/a", "mine/state.npz"):
        assert not allowed(f"{bucket}/objects/jobs/{name}", "", frozenset())


def test_pods_may_impersonate_an_account_instead() -> None:
    recording = up(workloadAccountId="cloud-tpu-sa", workloadRoles=["roles/aiplatform.user"])
    member = "serviceAccount:cloud-tpu-sa@my-project.iam.gserviceaccount.com"
    assert granted(recording, BUCKET_MEMBER, "bucket") == {
        (bucket, role, member) for bucket in BUCKETS for role in ON_BUCKETS
    }
    assert not [item for item in recording.of(BUCKET_MEMBER) if "condition" in item.inputs], (
        "one for all teams"
    )
    assert ("my-project", "roles/aiplatform.user", member) in granted(recording, PROJECT_MEMBER, "project")
    assert granted(recording, ACT_AS, "serviceAccountId") == {
        (
            "projects/my-project/serviceAccounts/cloud-tpu-sa@my-project.iam.gserviceaccount.com",
            "roles/iam.workloadIdentityUser",
            "serviceAccount:my-project.svc.id.goog[tpu-training/trainer]",
        )
    }


def test_who_may_create_nodes_is_granted_the_nodes_account_alone() -> None:
    recording = up(nodeAccountUsers=["group:sre@example.com"])
    assert granted(recording, ACT_AS, "serviceAccountId") == {
        (
            f"projects/my-project/serviceAccounts/{NODES}",
            "roles/iam.serviceAccountUser",
            "group:sre@example.com",
        )
    }


@pytest.mark.parametrize("users", [["group:sre@example.com"], []])
def test_all_that_makes_nodes_waits_until_its_maker_may_act_as_their_account(users: list[str]) -> None:
    recording = up(TRAIN, nodeAccountUsers=users)
    makers = [*recording.of(CLUSTER), *recording.of(POOL)]
    waits = [resource.options.get("hooks", {}).get("beforeCreate") for resource in makers]
    assert len(waits) > 2
    assert waits == [["may-act"] if users else None] * len(waits)


def test_nodes_come_after_their_accounts_roles() -> None:
    recording = up()
    roles = {resource.name for resource in recording.of(PROJECT_MEMBER) if NODES in resource.inputs["member"]}
    assert roles
    # Children are registered after their component, and that after what it depends on.
    for component in ("tpu:gke:TrainingCluster", "tpu:gke:TpuPool"):
        needed = {urn.rpartition("::")[2] for urn in recording.only(component).options["dependencies"]}
        assert roles <= needed, component

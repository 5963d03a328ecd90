"""The storage layer's grants in the emulated cloud: what a host can do with it, and what not."""

from __future__ import annotations

from typing import Any

import pytest
from storage_front import PROJECT, Front

from infra.layers.storage.identity import BUCKET_ROLES
from tests.infra.recording import Recording, run

CHECKPOINTS, CONTROLLERS = "my-project-checkpoints", "my-project-checkpoints-fleet"
STATE = b'{"desired": 4}'


@pytest.fixture(scope="module")
def host(front: Front) -> str:
    """The account of the hosts, with every grant of the program; the controller has written its state."""
    recording = run("storage", {"gcp:project": PROJECT})
    account = recording.only("gcp:serviceaccount/account:Account").inputs["accountId"]
    email = f"{account}@{PROJECT}.iam.gserviceaccount.com"
    front.world.directory[f"projects/{PROJECT}/serviceAccounts/{email}"] = {"email": email}
    for bucket in recording.of("gcp:storage/bucket:Bucket"):
        access = {"uniformBucketLevelAccess": {"enabled": bucket.inputs["uniformBucketLevelAccess"]}}
        body = {"name": bucket.inputs["name"], "iamConfiguration": access}
        assert front.request("POST", "b", body, project=PROJECT).status == 200
    for resource, role, member in grants(recording):
        policy = front.iam.policy(resource)
        policy["bindings"].append({"role": role, "members": [member]})
        front.iam.set_policy(resource, policy)
    assert front.put(CONTROLLERS, "state.json", STATE).status == 200
    assert front.put(CHECKPOINTS, "mine", b"x").status == 200
    return email


def grants(recording: Recording) -> list[tuple[str, str, str]]:
    """(resource, role, member) of all that the layer grants on buckets and on the project."""
    on_buckets = recording.of("gcp:storage/bucketIAMMember:BucketIAMMember")
    on_project = recording.of("gcp:projects/iAMMember:IAMMember")
    result = [(f"projects/_/buckets/{item.inputs['bucket']}", item) for item in on_buckets]
    result += [(f"projects/{item.inputs['project']}", item) for item in on_project]
    assert len(result) == 2 * len(BUCKET_ROLES) + 2, "on checkpoints and steps, and on the project"
    return [(resource, item.inputs["role"], item.inputs["member"]) for resource, item in result]


_MINE, _STATE = f"b/{CHECKPOINTS}/o/mine", f"b/{CONTROLLERS}/o/state.json"
_OWNER = {"bindings": [{"role": "roles/storage.admin", "members": ["allUsers"]}]}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"/upload/storage/v1/b/{CONTROLLERS}/o?uploadType=media&name=state.json", b"{}"),
        ("POST", f"/upload/storage/v1/b/{CONTROLLERS}/o?uploadType=media&name=new.json", b"{}"),
        ("POST", f"/upload/storage/v1/b/{CONTROLLERS}/o?uploadType=resumable&name=state.json", {}),
        ("POST", f"{_MINE}/rewriteTo/{_STATE}", {}),
        ("POST", f"{_MINE}/copyTo/{_STATE}", {}),
        ("POST", f"{_STATE}/compose", {"sourceObjects": [{"name": "state.json"}]}),
        ("PATCH", _STATE, {"metadata": {"a": "b"}}),
        ("PUT", _STATE, {"metadata": {"a": "b"}}),
        ("POST", f"b/{CONTROLLERS}/o/state.json/moveTo/o/away", None),
        ("DELETE", _STATE, None),
        ("GET", _STATE, None),
        ("GET", f"{_STATE}?alt=media", None),
        ("POST", f"{_STATE}/rewriteTo/b/{CHECKPOINTS}/o/stolen", {}),
        ("GET", f"b/{CONTROLLERS}/o", None),
        ("GET", f"b/{CONTROLLERS}", None),
        ("PATCH", f"b/{CONTROLLERS}", {"labels": {"a": "b"}}),
        ("PUT", f"b/{CONTROLLERS}/iam", _OWNER),
        ("DELETE", f"b/{CONTROLLERS}", None),
        ("PUT", f"b/{CHECKPOINTS}/iam", _OWNER),
    ],
)
def test_no_host_writes_or_reads_the_controllers_state(
    front: Front, host: str, method: str, path: str, body: Any
) -> None:
    refused = front.request(method, path, body, principal=host)
    assert refused.status == 403, refused.body
    state = front.request("GET", f"{_STATE}?alt=media")
    assert (state.status, state.body) == (200, STATE)


@pytest.mark.parametrize(
    ("missing", "path", "body"),
    [
        ("storage.objects.create", "o/a/moveTo/o/new", None),
        ("storage.objects.delete", "o/a/moveTo/o/b", None),
        ("storage.objects.move", "o/a/moveTo/o/new", None),
        ("storage.objects.create", "o/new/compose", {"sourceObjects": [{"name": "a"}]}),
        ("storage.objects.delete", "o/b/compose", {"sourceObjects": [{"name": "a"}]}),
        ("storage.objects.get", "o/new/compose", {"sourceObjects": [{"name": "a"}]}),
        (
            "storage.objects.delete",
            "o/new/compose",
            {"sourceObjects": [{"name": "a"}], "deleteSourceObjects": True},
        ),
        ("storage.objects.create", "o/a/copyTo/b/{bucket}/o/new", {}),
        ("storage.objects.delete", "o/a/rewriteTo/b/{bucket}/o/b", {}),
        ("storage.folders.create", "folders/f/renameTo/folders/g", None),
    ],
)
def test_a_write_asks_for_each_of_its_permissions(
    front: Front, new_bucket: Any, missing: str, path: str, body: Any
) -> None:
    person, role = "writer@example.com", f"projects/{PROJECT}/roles/all_but_one"
    uniform, folders = {"uniformBucketLevelAccess": {"enabled": True}}, {"enabled": "folders" in path}
    bucket = new_bucket(iamConfiguration=uniform, hierarchicalNamespace=folders)
    for name in "ab":
        assert front.put(bucket, name, b"x").status == 200
    if "folders" in path:
        assert front.request("POST", f"b/{bucket}/folders", {"name": "f/"}).status == 200
    every = {
        *(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list", "move", "update")),
        *(f"storage.folders.{verb}" for verb in ("create", "delete", "get", "list", "rename")),
    }
    front.world.directory[role] = {"name": role}
    front.iam.create(f"projects/_/buckets/{bucket}", [{"role": role, "members": [f"user:{person}"]}])
    front.iam.define_role(role, every - {missing})
    at = f"b/{bucket}/{path.format(bucket=bucket)}"
    refused = front.request("POST", at, body, principal=person)
    assert (refused.status, missing in refused.body.decode()) == (403, True), refused.body
    front.iam.define_role(role, every)
    assert front.request("POST", at, body, principal=person).status == 200


def test_the_same_host_writes_its_checkpoints(front: Front, host: str) -> None:
    """Or the refusals above would prove nothing."""
    path = f"/upload/storage/v1/b/{CHECKPOINTS}/o?uploadType=media&name=boot%2Fother%2Fworker-0.json"
    assert front.request("POST", path, b"{}", principal=host).status == 200
    assert (
        front.request("DELETE", f"b/{CHECKPOINTS}/o/boot%2Fother%2Fworker-0.json", principal=host).status
        == 204
    )


def test_who_runs_the_fleet_is_granted_the_controllers_bucket_by_name(front: Front, host: str) -> None:
    person = "engineer@example.com"
    resource = f"projects/_/buckets/{CONTROLLERS}"
    policy = front.iam.policy(resource)
    policy["bindings"].append({"role": "roles/storage.objectUser", "members": [f"user:{person}"]})
    front.iam.set_policy(resource, policy)
    path = f"/upload/storage/v1/b/{CONTROLLERS}/o?uploadType=media&name=state.json"
    assert front.request("POST", path, STATE, principal=person).status == 200
    assert front.request("GET", f"{_STATE}?alt=media", principal=person).body == STATE

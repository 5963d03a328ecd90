"""Buckets: what is accepted, what is filled in, who may do what, and the official provider's own requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from storage_front import PROJECT, Front, object_path


def insert(front: Front, name: str, **body: Any) -> Any:
    return front.request("POST", "b", {"name": name, **body}, project=PROJECT)


class TestInsert:
    def test_defaults(self, front: Front) -> None:
        made = insert(front, "defaults").json
        assert (made["location"], made["locationType"], made["storageClass"]) == (
            "US",
            "multi-region",
            "STANDARD",
        )
        assert made["softDeletePolicy"]["retentionDurationSeconds"] == "604800"
        assert made["iamConfiguration"]["publicAccessPrevention"] == "inherited"
        assert (made["metageneration"], made["projectNumber"]) == ("1", "123456789012")
        assert front.request("GET", "b/defaults").json == made
        assert front.world.directory["projects/_/buckets/defaults"] == made

    @pytest.mark.parametrize(
        "name",
        ["ab", "Upper", "-dash", "dash-", "under_", "x" * 64, "goog-mine", "my-google", "192.168.1.1", "a b"],
    )
    def test_bad_names(self, front: Front, name: str) -> None:
        refused = insert(front, name)
        assert (refused.status, refused.reason) == (400, "invalid")

    def test_a_name_with_dots_wants_a_domain_and_is_taken_once(self, front: Front, bucket: str) -> None:
        assert insert(front, "data.example.com").status == 403
        refused = insert(front, bucket)
        assert (refused.status, refused.reason) == (409, "conflict")

    @pytest.mark.parametrize(
        ("body", "word"),
        [
            ({"location": "us_east5"}, "location"),
            ({"location": "xx-moon9"}, "location"),
            ({"storageClass": "WARM"}, "WARM"),
            ({"softDeletePolicy": {"retentionDurationSeconds": "60"}}, "retentionDurationSeconds"),
            ({"labels": {"Env": "dev"}}, "label"),
            ({"lifecycle": {"rule": [{"action": {"type": "Burn"}, "condition": {"age": 1}}]}}, "Burn"),
            ({"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {}}]}}, "condition"),
            ({"hierarchicalNamespace": {"enabled": True}}, "uniform"),
            (
                {
                    "hierarchicalNamespace": {"enabled": True},
                    "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
                    "versioning": {"enabled": True},
                },
                "versioning",
            ),
        ],
    )
    def test_refusals(self, front: Front, body: dict[str, Any], word: str) -> None:
        refused = insert(front, "refused", **body)
        assert refused.status == 400
        assert word in refused.json["error"]["message"]

    def test_what_is_not_emulated_is_no_mistake_of_the_callers(self, front: Front) -> None:
        refused = insert(front, "refused", website={"mainPageSuffix": "index.html"})
        assert (refused.status, refused.json["error"]["status"]) == (501, "UNIMPLEMENTED")

    def test_another_project(self, front: Front) -> None:
        assert front.request("POST", "b", {"name": "elsewhere"}, project="other").status in (400, 403)


class TestChange:
    def test_patch(self, front: Front, new_bucket: Callable[..., str]) -> None:
        bucket = new_bucket(labels={"a": "1", "b": "2"})
        changed = front.request("PATCH", f"b/{bucket}", {"labels": {"a": None, "c": "3"}}).json
        assert changed["labels"] == {"b": "2", "c": "3"}
        assert changed["metageneration"] == "2"
        changed = front.request("PATCH", f"b/{bucket}", {"versioning": {"enabled": True}}).json
        assert changed["versioning"] == {"enabled": True}
        stale = front.request("PATCH", f"b/{bucket}", {"labels": None}, ifMetagenerationMatch=1)
        assert stale.status == 412
        assert "labels" not in front.request("PATCH", f"b/{bucket}", {"labels": None}).json

    def test_update_goes_back_to_defaults(self, front: Front, new_bucket: Callable[..., str]) -> None:
        bucket = new_bucket(labels={"a": "1"}, location="us-east5", versioning={"enabled": True})
        changed = front.request("PUT", f"b/{bucket}", {"labels": {"z": "1"}}).json
        assert changed["labels"] == {"z": "1"}
        assert "versioning" not in changed
        assert changed["location"] == "US-EAST5"

    def test_what_never_changes(self, front: Front, new_bucket: Callable[..., str]) -> None:
        bucket = new_bucket(location="us-east5")
        for body in ({"location": "US"}, {"hierarchicalNamespace": {"enabled": True}}, {"name": "other"}):
            assert front.request("PATCH", f"b/{bucket}", body).status == 400, body

    def test_versioning_takes_effect_at_once(self, front: Front, bucket: str) -> None:
        front.put(bucket, "a", b"1")
        front.request("PATCH", f"b/{bucket}", {"versioning": {"enabled": True}})
        front.put(bucket, "a", b"2")
        assert len(front.request("GET", f"b/{bucket}/o", versions=True).json["items"]) == 2


class TestDelete:
    def test_only_when_empty_of_every_generation(self, front: Front, new_bucket: Callable[..., str]) -> None:
        bucket = new_bucket(versioning={"enabled": True})
        made = front.put(bucket, "a", b"1").json
        front.request("DELETE", object_path(bucket, "a"))
        refused = front.request("DELETE", f"b/{bucket}")
        assert (refused.status, refused.reason) == (409, "conflict")
        front.request("DELETE", object_path(bucket, "a"), generation=made["generation"])
        assert front.request("DELETE", f"b/{bucket}").status == 204
        assert front.request("GET", f"b/{bucket}").status == 404
        assert f"projects/_/buckets/{bucket}" not in front.world.directory
        assert insert(front, bucket).status == 200


def test_listing_of_buckets(front: Front) -> None:
    for name in ("list-a", "list-b", "list-c"):
        insert(front, name)
    first = front.request("GET", "b", project=PROJECT, prefix="list-", maxResults=2).json
    assert [item["name"] for item in first["items"]] == ["list-a", "list-b"]
    second = front.request("GET", "b", project=PROJECT, prefix="list-", pageToken=first["nextPageToken"]).json
    assert [item["name"] for item in second["items"]] == ["list-c"]


def test_small_resources(front: Front, bucket: str) -> None:
    layout = front.request("GET", f"b/{bucket}/storageLayout").json
    assert layout["hierarchicalNamespace"] == {"enabled": False}
    assert "items" not in front.request("GET", f"b/{bucket}/anywhereCaches").json
    assert "items" not in front.request("GET", f"b/{bucket}/notificationConfigs").json
    agent = front.request("GET", f"projects/{PROJECT}/serviceAccount").json
    assert agent["email_address"].startswith("service-123456789012@")


class TestAccess:
    READER, WRITER = "reader@example.com", "writer@example.com"

    @pytest.fixture
    def shared(self, front: Front, new_bucket: Callable[..., str]) -> str:
        bucket = new_bucket(
            iamConfiguration={
                "uniformBucketLevelAccess": {"enabled": True},
                "publicAccessPrevention": "enforced",
            }
        )
        grant(front, bucket, "roles/storage.objectViewer", f"user:{self.READER}")
        grant(front, bucket, "roles/storage.objectCreator", f"user:{self.WRITER}")
        return bucket

    def test_readers_read(self, front: Front, shared: str) -> None:
        front.put(shared, "a", b"1")
        path = object_path(shared, "a")
        assert front.request("GET", path, principal=self.READER).status == 200
        assert front.request("GET", f"b/{shared}/o", principal=self.READER).status == 200
        assert front.request("DELETE", path, principal=self.READER).status == 403
        assert front.request("GET", f"b/{shared}", principal=self.READER).status == 403
        upload = f"/upload/storage/v1/b/{shared}/o"
        refused = front.request("POST", upload, b"x", principal=self.READER, uploadType="media", name="b")
        assert refused.status == 403
        assert "storage.objects.create" in refused.json["error"]["message"]

    def test_overwriting_needs_delete_too(self, front: Front, shared: str) -> None:
        upload = f"/upload/storage/v1/b/{shared}/o"
        arguments: dict[str, Any] = {"principal": self.WRITER, "uploadType": "media", "name": "new"}
        assert front.request("POST", upload, b"1", **arguments).status == 200
        refused = front.request("POST", upload, b"2", **arguments)
        assert refused.status == 403
        assert "storage.objects.delete" in refused.json["error"]["message"]

    def test_a_condition_on_the_object_s_name(self, front: Front, shared: str) -> None:
        prefix = f"projects/_/buckets/{shared}/objects/data/"
        condition = {"title": "prefix", "expression": f"resource.name.startsWith('{prefix}')"}
        grant(front, shared, "roles/storage.objectViewer", "user:narrow@example.com", condition)
        for name, status in (("data/a", 200), ("other/a", 403)):
            front.put(shared, name, b"1")
            assert (
                front.request("GET", object_path(shared, name), principal="narrow@example.com").status
                == status
            )

    def test_the_public_is_kept_out(self, front: Front, shared: str) -> None:
        policy = front.request("GET", f"b/{shared}/iam").json
        policy["bindings"].append({"role": "roles/storage.objectViewer", "members": ["allUsers"]})
        assert front.request("PUT", f"b/{shared}/iam", policy).status == 412

    def test_a_stale_policy(self, front: Front, shared: str) -> None:
        policy = front.request("GET", f"b/{shared}/iam").json
        assert front.request("PUT", f"b/{shared}/iam", policy).status == 200
        assert front.request("PUT", f"b/{shared}/iam", policy).status == 412

    def test_permissions_can_be_asked_for(self, front: Front, shared: str) -> None:
        requested = ["storage.objects.get", "storage.objects.delete"]
        path = f"b/{shared}/iam/testPermissions"
        held = front.request("GET", path, principal=self.READER, permissions=requested).json
        assert held["permissions"] == ["storage.objects.get"]

    def test_a_missing_bucket_is_a_404_to_everybody(self, front: Front) -> None:
        assert front.request("GET", "b/none-such/o", principal=self.READER).status == 404
        query = {"uploadType": "media", "name": "a"}
        path = "/upload/storage/v1/b/none-such/o"
        assert front.request("POST", path, b"x", principal=self.READER, **query).status == 404


def grant(front: Front, bucket: str, role: str, member: str, condition: dict[str, str] | None = None) -> None:
    policy = front.request("GET", f"b/{bucket}/iam", optionsRequestedPolicyVersion=3).json
    binding: dict[str, Any] = {"role": role, "members": [member]}
    if condition:
        binding["condition"] = condition
        policy["version"] = 3
    policy["bindings"].append(binding)
    reply = front.request("PUT", f"b/{bucket}/iam", policy)
    assert reply.status == 200, reply.body

"""Keys in Cloud KMS, where who may use them is checked."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from storage_front import NUMBER, PROJECT, Front, object_path

AGENT = f"service-{NUMBER}@gs-project-accounts.iam.gserviceaccount.com"
_numbers = itertools.count()


@pytest.fixture
def new_key(front: Front) -> Callable[..., str]:
    """Makes a key, which the agent may use unless `granted` says otherwise."""

    def make(location: str = "us-east5", *, granted: bool = True) -> str:
        key = f"projects/{PROJECT}/locations/{location}/keyRings/r/cryptoKeys/k{next(_numbers)}"
        front.world.directory[key] = {"name": key}
        front.world.directory[f"{key}/cryptoKeyVersions/1"] = {"state": "ENABLED"}
        if granted:
            assert front.request("GET", f"projects/{PROJECT}/serviceAccount").status == 200  # which makes it
            role = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
            front.iam.set_policy(key, {"bindings": [{"role": role, "members": [f"serviceAccount:{AGENT}"]}]})
        return key

    return make


def default_key(key: str) -> dict[str, Any]:
    return {"defaultKmsKeyName": key}


class TestKms:
    @pytest.fixture
    def encrypted(self, new_bucket: Callable[..., str], new_key: Callable[..., str]) -> tuple[str, str]:
        key = new_key()
        return new_bucket(location="us-east5", encryption=default_key(key)), key

    @pytest.mark.parametrize("granted", [True, False])
    @pytest.mark.parametrize("method", ["POST", "PATCH"])
    def test_a_bucket_s_key_must_be_granted(
        self, front: Front, new_bucket: Any, new_key: Any, method: str, granted: bool
    ) -> None:
        body = {"location": "US-EAST5", "encryption": default_key(new_key(granted=granted))}
        if method == "POST":
            name = f"keyed-{next(_numbers)}"
            reply = front.request("POST", "b", {"name": name, **body}, project=PROJECT)
        else:
            name = new_bucket(location="us-east5")
            reply = front.request("PATCH", f"b/{name}", body)
        assert reply.status == (200 if granted else 403), reply.body
        if not granted:
            assert reply.json["error"]["message"] == (
                "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service account "
                "has been authorized to use this key."
            )
            assert "encryption" not in front.request("GET", f"b/{name}").json

    def test_a_key_elsewhere_or_of_no_such_name(self, front: Front, new_key: Any) -> None:
        existing = new_key("europe-west4")
        gone = existing.replace("europe-west4", "us-east5") + "-none"
        del front.world.directory[deleted := new_key()]
        for key, status, reason in (
            (deleted, 400, "cloudKmsEncryptionKeyNotFound"),
            (existing, 400, "cloudKmsKeyLocationNotAllowed"),
            ("my-key", 400, "cloudKmsBadKey"),
            (gone, 403, "forbidden"),
        ):
            body = {"name": "keyed", "location": "us-east5", "encryption": default_key(key)}
            refused = front.request("POST", "b", body, project=PROJECT)
            assert (refused.status, refused.reason) == (status, reason), refused.body

    def test_objects_show_the_version_and_go_with_it(
        self, front: Front, encrypted: tuple[str, str], new_key: Any
    ) -> None:
        bucket, key = encrypted
        assert front.put(bucket, "a", b"1").json["kmsKeyName"] == f"{key}/cryptoKeyVersions/1"
        other = new_key()
        named = front.put(bucket, "b", b"2", kmsKeyName=other).json
        assert named["kmsKeyName"] == f"{other}/cryptoKeyVersions/1"
        copied = front.request("POST", f"{object_path(bucket, 'b')}/copyTo/{object_path(bucket, 'c')}", {})
        assert copied.json["kmsKeyName"] == f"{key}/cryptoKeyVersions/1"
        changed = front.request("PUT", object_path(bucket, "a"), {"metadata": {"k": "v"}}).json
        assert changed["kmsKeyName"] == f"{key}/cryptoKeyVersions/1"
        front.world.directory[f"{key}/cryptoKeyVersions/1"]["state"] = "DESTROY_SCHEDULED"
        for refused in (
            front.read(bucket, "a"),
            front.read(bucket, "c"),
            front.put(bucket, "d", b"3"),
            front.request("POST", f"{object_path(bucket, 'a')}/copyTo/{object_path(bucket, 'e')}", {}),
        ):
            assert (refused.status, refused.reason) == (400, "cloudKmsDisabledKey")
        assert front.read(bucket, "b").body == b"2"
        assert front.request("GET", object_path(bucket, "a")).status == 200, "metadata isn't encrypted"

    def test_a_grant_taken_back(self, front: Front, encrypted: tuple[str, str]) -> None:
        bucket, key = encrypted
        front.put(bucket, "a", b"1")
        front.iam.set_policy(key, {"bindings": []})
        assert front.read(bucket, "a").status == 403
        assert front.put(bucket, "b", b"1").status == 403


def test_a_customers_own_key_is_not_emulated(front: Front, bucket: str) -> None:
    path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=a"
    assert front.request("POST", path, b"x", headers={"X-Goog-Encryption-Algorithm": "AES256"}).status == 501

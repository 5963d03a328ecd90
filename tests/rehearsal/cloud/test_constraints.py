"""Constraints of organization policies are refused in Google's words, which the program tells apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cloud_front import PROJECT, CloudFront

from infra.google.failures import Kind, classify

P = f"projects/{PROJECT}"
BUCKETS = f"storage.googleapis.com/storage/v1/b?project={PROJECT}"
EVEN = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
POLICY = {"policy": {"bindings": [
    {"role": "roles/owner", "members": ["user:owner@example.com"]},
    {"role": "roles/tpu.viewer", "members": ["user:ada@elsewhere.org"]},
]}}  # fmt: skip
REFUSED: list[tuple[str, list[str], str, Any]] = [
    ("iam.disableServiceAccountCreation", [], f"iam.googleapis.com/v1/{P}/serviceAccounts",
     {"accountId": "tpu-hosts"}),
    ("iam.allowedPolicyMemberDomains", ["example.com"],
     f"cloudresourcemanager.googleapis.com/v1/{P}:setIamPolicy", POLICY),
    ("storage.uniformBucketLevelAccess", [], BUCKETS, {"name": "uneven"}),
    ("gcp.resourceLocations", ["europe-west4"], BUCKETS, {"name": "far", "location": "us-east5", **EVEN}),
    ("gcp.restrictServiceUsage", ["storage.googleapis.com"], f"pubsub.googleapis.com/v1/{P}/topics", None),
]  # fmt: skip


@pytest.fixture(name="front")
def _front(tmp_path: Path) -> Iterator[CloudFront]:
    front = CloudFront(tmp_path)
    yield front
    front.close()


@pytest.mark.parametrize(("constraint", "allowed", "url", "body"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_a_constraint_forbids_is_refused(
    front: CloudFront, constraint: str, allowed: list[str], url: str, body: Any
) -> None:
    method = "GET" if body is None else "POST"
    front.world.constraints[constraint] = allowed
    reply = front.request(method, url, body)
    failure = classify(reply.error, reply.status)
    assert (failure.kind, failure.about) == (Kind.POLICY, constraint), reply.body
    assert "orgpolicy.policyAdmin" in failure.fix
    assert constraint in failure.fix
    del front.world.constraints[constraint]
    assert front.request(method, url, body).status == 200


def test_what_a_constraint_allows_is_made(front: CloudFront) -> None:
    front.world.constraints["gcp.resourceLocations"] = ["us-east5"]
    assert front.request("POST", BUCKETS, {"name": "near", "location": "US-EAST5"}).status == 200

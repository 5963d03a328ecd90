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
    ("gcp.resourceLocations", ["in:us-central1-locations", "us-east5"],
     f"compute.googleapis.com/compute/v1/{P}/zones/us-east5-b/disks", {"name": "far", "sizeGb": "10"}),
    ("gcp.resourceLocations", ["us-east5-b"],
     f"compute.googleapis.com/compute/v1/{P}/regions/us-east5/addresses", {"name": "far"}),
    ("gcp.resourceLocations", ["us-east5-b"],
     f"artifactregistry.googleapis.com/v1/{P}/locations/us-east5/repositories?repositoryId=far",
     {"format": "DOCKER"}),
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
    front.world.constraints["gcp.resourceLocations"] = ["us-east5", "in:us-central1-locations"]
    assert front.request("POST", BUCKETS, {"name": "near", "location": "US-EAST5"}).status == 200
    for place in ("regions/us-central1/addresses", "zones/us-central1-b/disks", "global/networks"):
        body = {"name": "near", "sizeGb": "10"} if "disks" in place else {"name": "near"}
        body |= {"autoCreateSubnetworks": False} if "networks" in place else {}
        assert front.compute("POST", place, body).status == 200


def test_compute_names_the_refused_location_and_the_resource(front: CloudFront) -> None:
    front.world.constraints["gcp.resourceLocations"] = ["in:us-central1-locations"]
    reply = front.compute("POST", "zones/us-east5-b/disks", {"name": "far", "sizeGb": "10"})
    assert reply.reason == "conditionNotMet"
    of = f"on the resource {P}/zones/us-east5-b/disks/far."
    assert (
        reply.error == f"Location ZONE:us-east5-b violates constraint constraints/gcp.resourceLocations {of}"
    )


def test_a_tpu_is_refused_where_the_organization_allows_none(front: CloudFront) -> None:
    front.world.constraints["gcp.resourceLocations"] = ["in:us-central1-locations"]
    url = f"tpu.googleapis.com/v2/{P}/locations/us-east5-b/nodes?nodeId=far"
    body = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
    reply = front.request("POST", url, body)
    assert classify(reply.error, reply.status).about == "gcp.resourceLocations", reply.body
    # Where it may be, it is another thing that it lacks.
    front.world.constraints["gcp.resourceLocations"].append("us-east5-b")
    assert "networks/default" in front.request("POST", url, body).error

"""A stranger without a role is refused by every method that is served, with the permission's name.

The requests are the smallest that the discovery documents allow, and the permissions follow from the methods'
ids as Google names them: neither comes from the tables that are tested.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from tpu_lab import NETWORK, SUBNETWORK, ZONE, P, node_body, open_lab

from google_facts import roles
from rehearsal.cloud.__main__ import NoHosts
from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import CloudConfig
from rehearsal.cloud.services import entries

PROJECT, OWNER, STRANGER = "wire-test", "owner@example.com", "stranger@example.com"
ROBOT = "robot@another-project.iam.gserviceaccount.com"
THING = "thing"  # whatever has a name that nothing is known of; the bucket of this name exists
VALUES = {
    "project": PROJECT,
    "projectId": PROJECT,
    "zone": "us-east5-b",
    "region": "us-east5",
    "permissions": "storage.objects.get",
}

BY_HAND = (
    ("cloudresourcemanager", "v1"), ("cloudresourcemanager", "v3"), ("iamcredentials", "v1"),
    ("logging", "v2"), ("oauth2", "v2"), ("serviceusage", "v1"), ("serviceusage", "v1beta1"),
    ("storage", "v1"), ("tpu", "v2"), ("tpu", "v2alpha1"),
)  # fmt: skip
# Methods that anybody may call who has logged in, with why.
OPEN = {
    "iamcredentials.projects.serviceAccounts.getAllowedLocations": "public: nothing but a boundary",
    "oauth2.userinfo.get": "about the caller",
    "oauth2.userinfo.v2.me.get": "about the caller",
    "serviceusage.operations.get": "its name is told to who began it alone",
}
# Methods whose permission isn't named as they are.
NAMED_OTHERWISE = {
    "serviceusage.services.enable": "Permission denied",  # Google names the service in its place
    "serviceusage.services.batchEnable": "Permission denied",
    "cloudbuild.projects.builds.cancel": "cloudbuild.builds.update",
    **{
        f"cloudkms.projects.locations.keyRings.cryptoKeys.{verb}": f"cloudkms.cryptoKeyVersions.{use}"
        for verb, use in (("encrypt", "useToEncrypt"), ("decrypt", "useToDecrypt"))
    },
    "cloudscheduler.projects.locations.jobs.resume": "cloudscheduler.jobs.enable",
    "container.projects.locations.clusters.setLocations": "container.clusters.update",
    "container.projects.locations.clusters.setMaintenancePolicy": "container.clusters.update",
    "container.projects.locations.clusters.setResourceLabels": "container.clusters.update",
    **{
        f"container.projects.locations.clusters.nodePools.{verb}": f"container.clusters.{requested}"
        for requested, verbs in {
            "get": ("get",),
            "list": ("list",),
            "update": ("create", "delete", "update", "setSize", "setAutoscaling", "setManagement"),
        }.items()
        for verb in verbs
    },
    "iamcredentials.projects.serviceAccounts.generateAccessToken": "iam.serviceAccounts.getAccessToken",
    "logging.entries.list": "logging.logEntries.list",
    "logging.entries.write": "logging.logEntries.create",
    "pubsub.projects.subscriptions.acknowledge": "pubsub.subscriptions.consume",
    "pubsub.projects.subscriptions.pull": "pubsub.subscriptions.consume",
    "pubsub.projects.topics.subscriptions.list": "pubsub.topics.listSubscriptions",
    "secretmanager.projects.secrets.addVersion": "secretmanager.versions.add",
    "serviceusage.services.consumerQuotaMetrics.list": "serviceusage.quotas.get",
    "serviceusage.services.generateServiceIdentity": "serviceusage.services.enable",
    "storage.buckets.getStorageLayout": "storage.objects.list",
    "storage.buckets.operations.get": "storage.bucketOperations.get",
    "storage.notifications.list": "storage.buckets.get",
    "storage.objects.compose": "storage.objects.get",
    "storage.objects.copy": "storage.objects.get",
    "storage.objects.insert": "storage.objects.create",
    "storage.objects.move": "storage.objects.get",
    "storage.objects.rewrite": "storage.objects.get",
    "storage.projects.serviceAccount.get": "resourcemanager.projects.get",
    "tpu.projects.locations.acceleratorTypes.get": "tpu.acceleratortypes.get",
    "tpu.projects.locations.acceleratorTypes.list": "tpu.acceleratortypes.list",
    "tpu.projects.locations.nodes.getGuestAttributes": "tpu.nodes.get",
    "tpu.projects.locations.runtimeVersions.get": "tpu.runtimeversions.get",
    "tpu.projects.locations.runtimeVersions.list": "tpu.runtimeversions.list",
}
# Bodies of methods that look into them before they know what is asked for.
ENTRY = {"logName": f"projects/{PROJECT}/logs/x", "resource": {"type": "global"}, "textPayload": "x"}
BODIES: dict[str, Any] = {
    "logging.entries.list": {"resourceNames": [f"projects/{PROJECT}"]},
    "logging.entries.write": {"entries": [ENTRY]},
    "storage.objects.compose": {"sourceObjects": [{"name": THING}]},
    "storage.objects.insert": {"name": THING},
}
QUERIES = {"storage.objects.insert": ("uploadType=media", f"name={THING}")}
_VERBS = {"insert": "create", "patch": "update", "aggregatedList": "list"}
# Services and collections whose permissions have another name.
_SERVICES = {
    "cloudresourcemanager": "resourcemanager",
    "billingbudgets": "billing",
    "cloudbilling": "billing",
}
_COLLECTIONS = {
    "artifactregistry.dockerImages": "dockerimages",
    "cloudbilling.billingAccounts": "accounts",
    "aiplatform.experiments": "tensorboardExperiments",
    "aiplatform.runs": "tensorboardRuns",
    "aiplatform.timeSeries": "tensorboardTimeSeries",
    "logging.metrics": "logMetrics",
}


@cache
def served() -> list[tuple[str, str]]:
    """Every API and version that something is served of, manually or by an entry."""
    return sorted({*BY_HAND, *((entry.api, version) for entry in entries() for version in entry.versions)})


@cache
def described() -> dict[str, dict[str, Any]]:
    """Method id → its description, with its API's host, what its path begins with, and its body's fields."""
    mapping: dict[str, dict[str, Any]] = {}
    folder = files("googleapiclient") / "discovery_cache" / "documents"
    for api, version in served():
        document = json.loads((folder / f"{api}.{version}.json").read_text())
        queue = [document]
        while queue:
            resource = queue.pop()
            queue.extend(resource.get("resources", {}).values())
            for method in resource.get("methods", {}).values():
                sent = document["schemas"].get(method.get("request", {}).get("$ref"), {})
                mapping.setdefault(
                    method["id"],
                    {
                        **method,
                        "host": f"{api}.googleapis.com",
                        "base": f"/{document['servicePath']}",
                        "fields": sent.get("properties", {}),
                    },
                )
    return mapping


def a_cloud(folder: Path) -> Cloud:
    """A cloud with every API on."""
    apis = tuple(f"{api}.googleapis.com" for api, _ in served())
    return Cloud(CloudConfig(PROJECT, folder, folder / "c", OWNER, "t", enabled_apis=apis), NoHosts())


def permission(method_id: str) -> str:
    """`cloudkms.keyRings.create` of `cloudkms.projects.locations.keyRings.create`."""
    api, *_, collection, verb = method_id.split(".")
    service, collection = _SERVICES.get(api, api), _COLLECTIONS.get(f"{api}.{collection}", collection)
    if collection.lower().endswith("operations") and verb == "wait":
        verb = "get"
    return NAMED_OTHERWISE.get(method_id, f"{service}.{collection}.{_VERBS.get(verb, verb)}")


def filled(name: str, parameter: dict[str, Any]) -> str:
    """A value of a path parameter or of a query parameter that is required."""
    pattern = parameter.get("pattern", "").strip("^$")
    if parameter.get("format") in ("int64", "int32"):
        return "1"
    text = pattern.replace("projects/[^/]+", f"projects/{PROJECT}").replace("[^/]+", THING)
    return text if pattern and re.fullmatch(pattern, text) else VALUES.get(name, THING)


def request(method_id: str) -> tuple[str, str, Any]:
    """HTTP method, path with query, and body."""
    method = described()[method_id]
    path, query = method["base"] + method["path"], list(QUERIES.get(method_id, ()))
    for name, parameter in method.get("parameters", {}).items():
        if parameter["location"] == "path":
            path = path.replace(f"{{+{name}}}", f"{{{name}}}").replace(f"{{{name}}}", filled(name, parameter))
        elif parameter.get("required"):
            query.append(f"{name}={filled(name, parameter)}")
    body = BODIES.get(method_id, {}) if "request" in method else None
    for name, schema in method["fields"].items():
        required = method_id in schema.get("annotations", {}).get("required", ())
        if schema.get("type") == "string" and (required or (name, method_id[-7:]) == ("name", ".insert")):
            body = {name: THING, **body}
    return method["httpMethod"], f"{path}?{'&'.join(query)}" if query else path, body


@pytest.mark.parametrize("api", sorted({api for api, _ in served()}))
async def test_a_stranger_is_refused_with_the_permissions_name(api: str, tmp_path: Path) -> None:
    cloud = a_cloud(tmp_path)
    # Of people, billingbudgets first demands a project that requests count for.
    stranger = ROBOT if api == "billingbudgets" else STRANGER
    wrong: dict[str, Any] = {}
    async with TestClient(TestServer(cloud.front_door.app())) as client:

        async def send(who: str, method_id: str) -> tuple[int, Any]:
            http_method, path, body = request(method_id)
            headers = {
                "Authorization": f"Bearer {cloud.iam.mint(who).value}",
                "Host": described()[method_id]["host"],
            }
            async with client.request(http_method, path, json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        made, _ = await send(OWNER, "storage.buckets.insert")
        assert made == 200
        for method_id in cloud.front_door.covered()[api]:
            status, answer = await send(stranger, method_id)
            text = json.dumps(answer)
            if method_id in OPEN:
                refused = status != 403
            elif method_id.endswith(".testIamPermissions"):  # says which the caller has: none
                refused = status in (200, 403, 404) and "permissions" not in answer
            else:
                refused = status == 403 and permission(method_id) in text
            if not refused:
                wrong[method_id] = (status, text)
    assert not wrong, json.dumps(wrong, indent=1)


COMPUTE = f"compute.googleapis.com/compute/v1/{P}"
MACHINE: dict[str, Any] = {
    "name": "vm",
    "machineType": f"zones/{ZONE}/machineTypes/e2-small",
    "disks": [{"boot": True, "initializeParams": {"diskSizeGb": 20}}],
    "networkInterfaces": [{"subnetwork": SUBNETWORK}],
}
SECOND = [
    (
        "compute.networks.updatePolicy",
        f"{COMPUTE}/global/firewalls",
        {"name": "f", "network": NETWORK, "allowed": [{"IPProtocol": "tcp"}]},
    ),
    (
        "compute.networks.updatePolicy",
        f"{COMPUTE}/regions/us-east5/subnetworks",
        {"name": "s", "network": NETWORK, "ipCidrRange": "10.200.0.0/24"},
    ),
    (
        "compute.networks.updatePolicy",
        f"{COMPUTE}/regions/us-east5/routers",
        {"name": "r", "network": NETWORK},
    ),
    (
        "compute.snapshots.useReadOnly",
        f"{COMPUTE}/zones/{ZONE}/disks",
        {
            "name": "d",
            "type": f"{P}/zones/{ZONE}/diskTypes/pd-balanced",
            "sourceSnapshot": "global/snapshots/corpus",
        },
    ),
    ("compute.snapshots.create", f"{COMPUTE}/zones/{ZONE}/disks/wire-data-ml/createSnapshot", {"name": "s"}),
    (
        "compute.subnetworks.use",
        f"{COMPUTE}/regions/us-east5/addresses",
        {"name": "a", "addressType": "INTERNAL", "subnetwork": SUBNETWORK},
    ),
    ("compute.subnetworks.use", f"{COMPUTE}/zones/{ZONE}/instances", MACHINE),
    (
        "compute.disks.use",
        f"{COMPUTE}/zones/{ZONE}/instances",
        {
            **MACHINE,
            "disks": [
                *MACHINE["disks"],
                {"source": f"{P}/zones/{ZONE}/disks/wire-data-ml", "mode": "READ_ONLY"},
            ],
        },
    ),
    (
        "iam.serviceAccounts.actAs",
        f"tpu.googleapis.com/v2/{P}/locations/{ZONE}/nodes?nodeId=n",
        node_body(),
    ),
]


@pytest.mark.parametrize(("second", "url", "body"), SECOND)
async def test_who_lacks_what_a_request_needs_besides_is_refused(
    second: str, url: str, body: Any, tmp_path: Path
) -> None:
    role = f"{P}/roles/all_but_one"
    async with open_lab(tmp_path) as lab:
        lab.iam.create(P, [{"role": role, "members": [f"user:{STRANGER}"]}])
        every = lab.iam.permissions | roles.permissions() | {item for item, *_ in SECOND}
        lab.iam.define_role(role, every - {second})
        status, answer = await lab.request("POST", url, body, STRANGER)
        assert (status, second in answer["error"]["message"]) == (403, True), answer
        lab.iam.define_role(role, every)
        assert (await lab.request("POST", url, body, STRANGER))[0] == 200

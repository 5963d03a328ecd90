"""Refusals of each entered service: fields that are needed, fields that never change, masks.

From each API's reference, not from the entries.
"""

from __future__ import annotations

import base64
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cloud_front import PROJECT, CloudFront

P = f"projects/{PROJECT}"
PUBSUB, SECRETS = f"pubsub.googleapis.com/v1/{P}", f"secretmanager.googleapis.com/v1/{P}/secrets"
REPOSITORIES = f"artifactregistry.googleapis.com/v1/{P}/locations/us-east5/repositories"
MONITORING = f"monitoring.googleapis.com/v3/{P}"
KMS = f"cloudkms.googleapis.com/v1/{P}/locations/us-east5/keyRings"
TRIGGERS = f"eventarc.googleapis.com/v1/{P}/locations/us-east5/triggers"
SERVICES = f"run.googleapis.com/v2/{P}/locations/us-east5/services"
SERVICE = {"template": {"containers": [{"image": "us-docker.pkg.dev/cloudrun/container/hello"}]}}
METRICS = f"logging.googleapis.com/v2/{P}/metrics"
DASHBOARDS = f"monitoring.googleapis.com/v1/{P}/dashboards"
CHARGED = {"X-Goog-User-Project": PROJECT}
BUDGETS = "billingbudgets.googleapis.com/v1/billingAccounts/01D4EE-079462-DFD6EC/budgets"
JOBS = f"us-east5-aiplatform.googleapis.com/v1/{P}/locations/us-east5/customJobs"
BATCHES = f"dataproc.googleapis.com/v1/{P}/locations/us-east5/batches"
COMPUTE = f"compute.googleapis.com/compute/v1/{P}"
REGION, GLOBAL = f"{COMPUTE}/regions/us-east5", f"{COMPUTE}/global"
EMAIL = {"type": "email", "labels": {"email_address": "a@example.com"}}
CONDITION = {"displayName": "c", "conditionAbsent": {"filter": 'metric.type="a"', "duration": "60s"}}
POLICY = {"displayName": "p", "combiner": "OR", "conditions": [CONDITION]}
FILTER = {"attribute": "type", "value": "google.cloud.pubsub.topic.v1.messagePublished"}
TRIGGER = {
    "serviceAccount": f"triggers@{PROJECT}.iam.gserviceaccount.com",
    "eventFilters": [FILTER],
    "destination": {"cloudRun": {"service": "w", "region": "us-east5"}},
    "transport": {"pubsub": {"topic": f"{P}/topics/one"}},
}
DOLLARS = {"amount": {"specifiedAmount": {"currencyCode": "USD", "units": "9"}}}
POOL = {"machineSpec": {}, "containerSpec": {"imageUri": "us-docker.pkg.dev/a/b/c"}}
INSIDE = {"sourceRanges": ["10.0.0.0/8"], "allowed": [{"IPProtocol": "tcp"}]}
MADE: tuple[tuple[str, str, Any], ...] = (
    ("PUT", f"{PUBSUB}/topics/one", {}),
    ("PUT", f"{PUBSUB}/topics/other", {}),
    ("PUT", f"{PUBSUB}/subscriptions/sub", {"topic": f"{P}/topics/one"}),
    ("POST", f"{SECRETS}?secretId=s", {"replication": {"automatic": {}}}),
    ("POST", f"{REPOSITORIES}?repositoryId=r", {"format": "DOCKER"}),
    ("POST", f"{KMS}?keyRingId=k", {}),
    ("POST", f"{KMS}/k/cryptoKeys?cryptoKeyId=k", {"purpose": "ENCRYPT_DECRYPT"}),
    ("POST", METRICS, {"name": "m", "filter": "severity>=ERROR"}),
    ("POST", f"{SERVICES}?serviceId=w", SERVICE),
    ("POST", f"iam.googleapis.com/v1/{P}/serviceAccounts", {"accountId": "triggers"}),
    ("POST", f"{TRIGGERS}?triggerId=t", TRIGGER),
    ("POST", f"{GLOBAL}/networks", {"name": "n", "autoCreateSubnetworks": False}),
    ("POST", f"{GLOBAL}/networks", {"name": "other", "autoCreateSubnetworks": False}),
    (
        "POST",
        f"{REGION}/subnetworks",
        {"name": "s", "network": "global/networks/n", "ipCidrRange": "10.0.0.0/24"},
    ),
    ("POST", f"{REGION}/routers", {"name": "r", "network": "global/networks/n"}),
    ("POST", f"{GLOBAL}/firewalls", {"name": "f", "network": "global/networks/n", **INSIDE}),
)
NETWORK = {"network": "global/networks/other"}
# Method, address, body, and a word of the refusal with 400. `{fingerprint}` is the resource's own.
REFUSED: tuple[tuple[str, str, Any, str], ...] = (
    ("PATCH", f"{PUBSUB}/topics/one", {"topic": {"labels": {"a": "b"}}}, "mask"),
    (
        "PATCH",
        f"{PUBSUB}/topics/one",
        {"topic": {"kmsKeyName": "k"}, "updateMask": "kmsKeyName"},
        "kmsKeyName",
    ),
    *(
        ("PATCH", f"{PUBSUB}/subscriptions/sub", {"subscription": {field: value}, "updateMask": field}, field)
        for field, value in (
            ("topic", f"{P}/topics/other"),
            ("filter", 'attributes.a = "b"'),
            ("enableMessageOrdering", True),
        )
    ),
    ("POST", f"{PUBSUB}/topics/one:publish", {"messages": []}, "message"),
    ("POST", f"{PUBSUB}/topics/one:publish", {"messages": [{"data": "eA=="}, {}]}, "message"),
    ("PATCH", f"{SECRETS}/s", {"labels": {"a": "b"}}, "mask"),
    *(
        ("PATCH", f"{REPOSITORIES}/r?updateMask={field}", {field: value}, field)
        for field, value in (("format", "PYTHON"), ("mode", "VIRTUAL_REPOSITORY"), ("kmsKeyName", "k"))
    ),
    ("POST", f"{KMS}/k/cryptoKeys?cryptoKeyId=other", {}, "purpose"),
    ("PATCH", f"{KMS}/k/cryptoKeys/k?updateMask=purpose", {"purpose": "MAC"}, "purpose"),
    ("PATCH", f"{KMS}/k/cryptoKeys/k", {"labels": {"a": "b"}}, "mask"),
    ("POST", METRICS, {"name": "other"}, "filter"),
    ("POST", f"{MONITORING}/alertPolicies", POLICY | {"conditions": []}, "condition"),
    ("POST", f"{MONITORING}/alertPolicies", POLICY | {"combiner": "AND", "conditions": [{}]}, "condition"),
    (
        "PATCH",
        f"{TRIGGERS}/t?updateMask=transport",
        {"transport": {"pubsub": {"topic": f"{P}/topics/other"}}},
        "transport",
    ),
    ("POST", DASHBOARDS, {"name": f"{P}/dashboards/a b", "displayName": "d", "gridLayout": {}}, "a b"),
    (
        "POST",
        f"{SECRETS}/s:addVersion",
        {"payload": {"data": base64.b64encode(b"x" * 65537).decode()}},
        "65536",
    ),
    ("POST", BUDGETS, DOLLARS | {"budgetFilter": {"projects": ["projects/another"]}}, "projects/another"),
    (
        "POST",
        BUDGETS,
        {"amount": {"specifiedAmount": {"currencyCode": "EUR", "units": "9"}}},
        "invalid argument",
    ),
    ("POST", JOBS, {"displayName": "j", "jobSpec": {"workerPoolSpecs": [POOL]}}, "machine_type"),
    ("POST", f"{REGION}/addresses", {"name": "x", "purpose": "GCE_ENDPOINT"}, "purpose"),
    (
        "POST",
        f"{REGION}/addresses",
        {"name": "x", "addressType": "EXTERNAL", "subnetwork": "regions/us-east5/subnetworks/s"},
        "subnetwork",
    ),
    (
        "POST",
        f"{COMPUTE}/zones/us-east5-b/instances",
        {
            "name": "x",
            "machineType": "zones/us-east5-b/machineTypes/e2-small",
            "disks": [{"boot": True}],
            "networkInterfaces": [{"subnetwork": "regions/us-east5/subnetworks/s"}],
        },
        "disks[0].source",
    ),
    (
        "POST",
        f"{COMPUTE}/zones/us-east5-b/instances",
        {
            "name": "x",
            "machineType": "zones/us-east5-b/machineTypes/e2-small",
            "disks": [{"boot": True, "initializeParams": {"diskSizeGb": 20}}],
        },
        "networkInterfaces",
    ),
    ("PATCH", f"{GLOBAL}/networks/n", {"description": "other"}, "description"),
    ("PATCH", f"{GLOBAL}/networks/n", {"autoCreateSubnetworks": True}, "autoCreateSubnetworks"),
    ("POST", f"{REGION}/subnetworks", {"name": "x", "ipCidrRange": "10.1.0.0/24"}, "network"),
    ("POST", f"{REGION}/subnetworks", {"name": "x", "network": "global/networks/n"}, "ipCidrRange"),
    *(
        ("PATCH", f"{REGION}/subnetworks/s", {"fingerprint": "{fingerprint}", field: value}, field)
        for field, value in (*NETWORK.items(), ("ipCidrRange", "10.9.0.0/24"), ("description", "other"))
    ),
    ("POST", f"{REGION}/routers", {"name": "x"}, "network"),
    ("PATCH", f"{REGION}/routers/r", NETWORK, "network"),
    ("PATCH", f"{GLOBAL}/firewalls/f", NETWORK, "network"),
    ("PATCH", f"{GLOBAL}/firewalls/f", {"direction": "EGRESS", "sourceRanges": None}, "direction"),
)


@pytest.fixture(scope="module", name="channel")
def _channel(cloud: CloudFront) -> str:
    """A resource of each kind, and the address of a notification channel, which Google names."""
    for method, url, body in MADE:
        reply = cloud.request(method, url, body)
        assert reply.status == 200, reply.body
        if url.startswith(COMPUTE):
            assert "error" not in cloud.done(reply)
        elif "/operations/" in reply.json.get("name", ""):
            cloud.until_done(f"{url.partition('/')[0]}/{url.split('/')[1]}", reply.json["name"])
    made = cloud.request("POST", f"{MONITORING}/notificationChannels", EMAIL)
    return f"monitoring.googleapis.com/v3/{made.json['name']}"


@pytest.mark.parametrize(("method", "url", "body", "word"), REFUSED)
def test_what_google_refuses_is_refused(
    cloud: CloudFront, channel: str, method: str, url: str, body: Any, word: str
) -> None:
    before = cloud.request("GET", url.partition("?")[0]).json if method == "PATCH" else {}
    if body.get("fingerprint"):
        body = body | {"fingerprint": before["fingerprint"]}
    reply = cloud.request(method, url, body, headers=CHARGED)
    assert (reply.status, word in reply.body.decode()) == (400, True), reply.body
    if method == "PATCH":
        assert cloud.request("GET", url.partition("?")[0]).json == before


def test_a_persons_budget_requests_count_for_a_project(cloud: CloudFront) -> None:
    robot = "robot@another-project.iam.gserviceaccount.com"
    cloud.grant(cloud.world.billing_account, "roles/billing.costsManager", f"serviceAccount:{robot}")
    without = cloud.request("POST", BUDGETS, DOLLARS)
    assert without.status == 403
    assert "billingbudgets.googleapis.com API requires a quota project" in without.error
    assert cloud.request("POST", BUDGETS, DOLLARS, headers=CHARGED).status == 200
    assert cloud.request("POST", BUDGETS, DOLLARS, token=cloud.token_of(robot)).status == 200


def test_a_budget_is_in_its_accounts_currency(tmp_path: Path) -> None:
    with closing(CloudFront(tmp_path, currency="EUR")) as front:
        amounts = (
            {"units": "9"},
            {"units": "9", "currencyCode": "EUR"},
            {"units": "9", "currencyCode": "USD"},
        )
        replies = [
            front.request("POST", BUDGETS, {"amount": {"specifiedAmount": amount}}, headers=CHARGED)
            for amount in amounts
        ]
        assert [reply.status for reply in replies] == [200, 200, 400]
        assert replies[0].json["amount"]["specifiedAmount"]["currencyCode"] == "EUR"


def test_a_channel_keeps_its_type(cloud: CloudFront, channel: str) -> None:
    change = {"type": "pubsub", "labels": {"topic": f"{P}/topics/one"}}
    reply = cloud.request("PATCH", f"{channel}?updateMask=type,labels", change)
    assert (reply.status, "type" in reply.error) == (400, True), reply.body


def test_a_secret_may_have_the_most_bytes(cloud: CloudFront, channel: str) -> None:
    data = base64.b64encode(b"x" * 65536).decode()
    assert cloud.request("POST", f"{SECRETS}/s:addVersion", {"payload": {"data": data}}).status == 200


def test_an_account_is_patched_and_never_replaced(cloud: CloudFront, channel: str) -> None:
    account = f"iam.googleapis.com/v1/{P}/serviceAccounts/triggers@{PROJECT}.iam.gserviceaccount.com"
    reply = cloud.request("PUT", account, {"displayName": "other"})
    assert reply.status == 501, "deprecated; nobody's rehearsal sends it"


def test_a_network_that_a_batch_names_is_there_and_stays(cloud: CloudFront, channel: str) -> None:
    body = {"pysparkBatch": {"mainPythonFileUri": "gs://b/j.py"}}
    body |= {"environmentConfig": {"executionConfig": {"networkUri": "of-a-batch"}}}
    reply = cloud.request("POST", f"{BATCHES}?batchId=in-a-network", body)
    assert (reply.status, "networks/of-a-batch" in reply.error) == (404, True), reply.body
    network = {"name": "of-a-batch", "autoCreateSubnetworks": False}
    cloud.done(cloud.request("POST", f"{GLOBAL}/networks", network))
    assert cloud.request("POST", f"{BATCHES}?batchId=in-a-network", body).status == 200
    reply = cloud.request("DELETE", f"{GLOBAL}/networks/of-a-batch")
    assert (reply.status, "already being used by" in reply.error) == (400, True), reply.body


ZONE = f"{COMPUTE}/zones/us-east5-b"
CLUSTERS = f"container.googleapis.com/v1/{P}/locations/us-east5/clusters"
DISK = {"boot": True, "initializeParams": {"diskSizeGb": 20}}


def user(kind: str, subnet: str) -> tuple[str, Any]:
    """Resources that hold a subnetwork: their collection and body."""
    at = f"regions/us-east5/subnetworks/{subnet}"
    machine = {"disks": [DISK], "networkInterfaces": [{"subnetwork": at}]}
    run = {"executionConfig": {"subnetworkUri": subnet}}
    cluster = {"name": "held", "network": "n", "subnetwork": subnet, "initialNodeCount": 1}
    nat = {
        "name": "nat",
        "natIpAllocateOption": "MANUAL_ONLY",
        "natIps": ["regions/us-east5/addresses/nat-ip"],
        "sourceSubnetworkIpRangesToNat": "LIST_OF_SUBNETWORKS",
    }
    nat |= {"subnetworks": [{"name": at, "sourceIpRangesToNat": ["ALL_IP_RANGES"]}]}
    return {
        "instance": (
            f"{ZONE}/instances",
            {"name": "held", "machineType": "zones/us-east5-b/machineTypes/e2-small", **machine},
        ),
        "address": (f"{REGION}/addresses", {"name": "held", "addressType": "INTERNAL", "subnetwork": at}),
        "nat": (f"{REGION}/routers", {"name": "held", "network": "global/networks/n", "nats": [nat]}),
        "cluster": (CLUSTERS, {"cluster": cluster}),
        "batch": (
            f"{BATCHES}?batchId=held",
            {"pysparkBatch": {"mainPythonFileUri": "gs://b/j.py"}, "environmentConfig": run},
        ),
    }[kind]


KINDS = ("instance", "address", "nat", "cluster", "batch")


@pytest.mark.parametrize("kind", KINDS)
def test_a_subnetwork_that_one_thing_uses_stays(cloud: CloudFront, channel: str, kind: str) -> None:
    name, third = f"of-{kind}", KINDS.index(kind)
    body = {"name": name, "network": "global/networks/n", "ipCidrRange": f"10.7.{third}.0/24"}
    body |= {"privateIpGoogleAccess": True}
    cloud.done(cloud.request("POST", f"{REGION}/subnetworks", body))
    if kind == "nat":
        cloud.done(cloud.request("POST", f"{REGION}/addresses", {"name": "nat-ip"}))
    url, sent = user(kind, name)
    reply = cloud.request("POST", url, sent)
    assert reply.status == 200, reply.body
    cloud.let_pass(600)
    for held in (f"subnetworks/{name}", *(("addresses/nat-ip",) if kind == "nat" else ())):
        refused = cloud.request("DELETE", f"{REGION}/{held}")
        assert (refused.status, "already being used by" in refused.error) == (400, True), refused.body


REMOTE: Any = {
    "format": "DOCKER",
    "mode": "REMOTE_REPOSITORY",
    "remoteRepositoryConfig": {"commonRepository": {"uri": "https://registry.k8s.io"}},
}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 200),
        ({"remoteRepositoryConfig": None}, 400),
        ({"mode": "STANDARD_REPOSITORY"}, 400),
        ({"remoteRepositoryConfig": {"commonRepository": {"uri": "registry.k8s.io"}}}, 400),
        ({"remoteRepositoryConfig": {"dockerRepository": {"publicRepository": "DOCKER_HUB"}}}, 501),
    ],
)
def test_a_remote_repository_has_an_upstream(cloud: CloudFront, change: Any, status: int) -> None:
    body = {key: value for key, value in {**REMOTE, **change}.items() if value}
    assert cloud.request("POST", f"{REPOSITORIES}?repositoryId=remote-{status}", body).status == status

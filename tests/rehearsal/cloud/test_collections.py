"""The collections engine behind the front door: what every entered collection does, shown on a few."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from cloud_front import NUMBER, PROJECT, CloudFront, Reply

from rehearsal.cloud.collections import Collection, Engine, Entry, EntryError, Reference, Verb
from rehearsal.cloud.collections.listing import predicate
from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.core.errors import NotEmulatedError
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.runtime import Runtime
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.services.caller import Caller
from rehearsal.cloud.services.monitoring.telemetry import Telemetry

_numbers = itertools.count()
P, REGION, ZONE = f"projects/{PROJECT}", "us-east5", "us-east5-b"
PUBSUB = f"pubsub.googleapis.com/v1/{P}"
REPOSITORIES = f"artifactregistry.googleapis.com/v1/{P}/locations/{REGION}/repositories"
SUBNET = f"regions/{REGION}/subnetworks/sub"
CLUSTERS = f"container.googleapis.com/v1/{P}/locations/{REGION}/clusters"
RINGS = f"cloudkms.googleapis.com/v1/{P}/locations/{REGION}/keyRings"


def fresh(kind: str) -> str:
    return f"{kind}-{next(_numbers)}"


def topic(cloud: CloudFront, **body: Any) -> str:
    name = fresh("topic")
    assert cloud.request("PUT", f"{PUBSUB}/topics/{name}", body).status == 200
    return name


def repository(cloud: CloudFront, **more: Any) -> str:
    name = fresh("repository")
    reply = cloud.request("POST", f"{REPOSITORIES}?repositoryId={name}", {"format": "DOCKER", **more})
    assert "response" in cloud.until_done("artifactregistry.googleapis.com/v1", reply.json["name"])
    return f"{REPOSITORIES}/{name}"


@pytest.fixture(name="subnet", scope="module")
def _subnet(cloud: CloudFront) -> str:
    """A subnetwork, by its name below the project; its network is `net`."""
    body: dict[str, Any] = {"name": "net", "autoCreateSubnetworks": False}
    cloud.done(cloud.compute("POST", "global/networks", body))
    body = {"name": "sub", "network": "global/networks/net", "ipCidrRange": "10.0.0.0/20"}
    cloud.done(cloud.compute("POST", f"regions/{REGION}/subnetworks", body))
    return f"regions/{REGION}/subnetworks/sub"


def gke(cloud: CloudFront, reply: Reply) -> Any:
    """The operation that the reply started, once it is done."""
    assert reply.status == 200, reply.body
    url = f"{CLUSTERS.removesuffix('/clusters')}/operations/{reply.json['name']}"
    cloud.let_pass(300)
    done = cloud.request("GET", url).json
    assert done["status"] == "DONE"
    return done


def refused(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.error


# Entries


def engine(*collections: Collection, api: str = "pubsub", more: tuple[Entry, ...] = ()) -> Engine:
    return served([Entry(api, ("v1",), collections), *more])


def served(entered: Iterable[Entry]) -> Engine:
    world = World("p", "1", VirtualClock())
    iam = Iam(world, "owner@example.com")
    runtime = Runtime(Caller(iam, lambda: ("", 0)), Telemetry(world, iam), lambda entry: None)
    return Engine(world, Operations(world), iam, runtime, entered)


TOPICS = Collection("pubsub.projects.topics")


@pytest.mark.parametrize(
    ("collections", "message"),
    [
        ((Collection("pubsub.projects.topicz"),), "topicz: not in the document of pubsub"),
        (
            (Collection("pubsub.projects.topics", verbs={"shout": Verb(lambda change: {})}),),
            "topics.shout: not in the document",
        ),
        ((Collection("pubsub.projects.topics", omit=("purge",)),), "topics.purge: not in the document"),
        ((TOPICS, TOPICS), "topics: two entries claim it"),
        (
            (Collection("pubsub.projects.topics", references=(Reference("kmsKeyName", ("a.b",)),)),),
            "kmsKeyName names a.b: no entry",
        ),
    ],
)
def test_an_entry_that_contradicts_the_document_or_another_is_refused(
    collections: tuple[Collection, ...], message: str
) -> None:
    with pytest.raises(EntryError, match=message):
        engine(*collections)


@pytest.mark.parametrize(("api", "version"), [("pubsubb", "v1"), ("pubsub", "v9")])
def test_an_entry_without_a_document_is_refused(api: str, version: str) -> None:
    with pytest.raises(EntryError, match=f"{api} {version}: there is no discovery document"):
        engine(TOPICS, more=(Entry(api, (version,), ()),))


def test_two_apis_with_the_same_names_are_kept_apart_or_refused() -> None:
    run, scheduler = "run.projects.locations.jobs", "cloudscheduler.projects.locations.jobs"
    other = Entry("run", ("v2",), (Collection(run),))
    with pytest.raises(EntryError, match="has the names of"):
        engine(Collection(scheduler), api="cloudscheduler", more=(other,))
    engine(Collection(scheduler, qualified=True), api="cloudscheduler", more=(other,))


# Resources


def test_a_subscription_outlives_its_topic(cloud: CloudFront) -> None:
    name, subscription = topic(cloud), f"{PUBSUB}/subscriptions/{fresh('sub')}"
    missing = cloud.request("PUT", subscription, {"topic": f"{P}/topics/none"})
    assert refused(missing) == (404, "Resource not found (resource=none).")
    letters = {"deadLetterPolicy": {"deadLetterTopic": f"{P}/topics/{name}"}}
    made = cloud.request("PUT", subscription, {"topic": f"{P}/topics/{name}", **letters}).json
    assert (made["ackDeadlineSeconds"], made["state"]) == (10, "ACTIVE")
    sent = {"messages": [{"data": "aGk="}, {"data": "aG8="}]}
    ids = cloud.request("POST", f"{PUBSUB}/topics/{name}:publish", sent).json["messageIds"]
    first = cloud.request("POST", f"{subscription}:pull", {"maxMessages": 1}).json["receivedMessages"]
    assert [item["message"]["messageId"] for item in first] == ids[:1]
    cloud.request("POST", f"{subscription}:acknowledge", {"ackIds": [first[0]["ackId"]]})
    rest = cloud.request("POST", f"{subscription}:pull", {"maxMessages": 9}).json["receivedMessages"]
    assert [item["message"]["data"] for item in rest] == ["aG8="]
    assert cloud.request("DELETE", f"{PUBSUB}/topics/{name}").status == 200
    left = cloud.request("GET", subscription).json
    assert left["topic"] == left["deadLetterPolicy"]["deadLetterTopic"] == "_deleted-topic_"


def test_an_update_changes_what_its_mask_names_and_nothing_else(cloud: CloudFront) -> None:
    url = f"{PUBSUB}/subscriptions/{fresh('sub')}"
    body = {
        "topic": f"projects/{NUMBER}/topics/{topic(cloud)}",
        "retryPolicy": {"minimumBackoff": "1s"},
        "labels": {"a": "b"},
    }
    cloud.request("PUT", url, body)
    change = {"retryPolicy": {"maximumBackoff": "9s", "minimumBackoff": "2s"}, "ackDeadlineSeconds": 20}
    sent = {"subscription": change, "updateMask": "retry_policy.maximum_backoff,labels"}
    changed = cloud.request("PATCH", url, sent).json
    assert changed["retryPolicy"] == {"maximumBackoff": "9s", "minimumBackoff": "1s"}
    assert (changed["ackDeadlineSeconds"], "labels" in changed) == (10, False)
    for mask, message in (
        ("", "missing the required field update_mask"),
        ("colour", "'colour' is no field of Subscription"),
        ("topic", "'topic' is immutable"),
    ):
        other = {"topic": f"{P}/topics/{topic(cloud)}"}
        reply = cloud.request("PATCH", url, {"subscription": other, "updateMask": mask})
        assert (reply.status, message in reply.error) == (400, True), reply.body


def test_an_empty_value_of_a_masked_field_removes_it(cloud: CloudFront) -> None:
    url = repository(cloud, description="old", labels={"a": "b"})
    sent = {"description": "", "labels": {}}
    emptied = cloud.request("PATCH", f"{url}?updateMask=description,labels", sent)
    assert {"description", "labels"}.isdisjoint(emptied.json)


def test_a_repository_is_made_and_deleted_by_operations(cloud: CloudFront) -> None:
    url = repository(cloud, labels={"a": "b"})
    body = {"format": "DOCKER"}
    assert "must match" in cloud.request("POST", f"{REPOSITORIES}?repositoryId=A", body).error
    assert "field format" in cloud.request("POST", f"{REPOSITORIES}?repositoryId=a", {}).error
    elsewhere = cloud.request("POST", f"{REPOSITORIES.replace(REGION, 'mars-1')}?repositoryId=a", body)
    assert refused(elsewhere) == (403, "Permission denied on 'locations/mars-1' (or it may not exist).")
    begun = cloud.request("DELETE", url).json
    assert cloud.request("DELETE", url).status in (404, 409), "while it is being deleted, or just after"
    done = cloud.until_done("artifactregistry.googleapis.com/v1", begun["name"])
    assert done["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}
    assert cloud.request("GET", url).status == 404


def test_what_only_the_server_sets_is_not_taken_from_a_request(cloud: CloudFront) -> None:
    url = repository(cloud, createTime="2001-01-01T00:00:00Z", sizeBytes="9", name="other", satisfiesPzs=True)
    shown = cloud.request("GET", url).json
    assert shown["name"] == url.partition("/v1/")[2]
    assert not shown["createTime"].startswith("2001")
    assert not shown.keys() & {"sizeBytes", "satisfiesPzs"}


def test_an_operation_that_is_cancelled_leaves_nothing(cloud: CloudFront) -> None:
    with cloud.stopped_clock():
        url = f"{REPOSITORIES}?repositoryId={(name := fresh('repository'))}"
        begun = cloud.request("POST", url, {"format": "DOCKER"}).json
        operation = f"artifactregistry.googleapis.com/v1/{begun['name']}"
        assert cloud.request("POST", f"{operation}:cancel").json == {}
        done = cloud.request("GET", operation).json
    assert (done["done"], done["error"]["code"]) == (True, 1)
    assert cloud.request("GET", f"{REPOSITORIES}/{name}").status == 404


def test_a_request_sent_again_with_its_id_does_nothing_more(cloud: CloudFront) -> None:
    path, body = f"regions/{REGION}/addresses?requestId=4f0f5c1c", {"name": fresh("address")}
    first, second = (cloud.compute("POST", path, body) for _ in range(2))
    assert first.json == second.json
    assert "error" not in cloud.done(second)


def test_access_comes_down_from_organization_and_billing_account(cloud: CloudFront) -> None:
    world, eve = cloud.world, "eve-of-all@example.com"
    budget = f"{world.billing_account}/budgets/1"
    assert not cloud.iam.allowed(eve, "billing.budgets.get", budget)
    granted = [{"role": "roles/billing.admin", "members": [f"user:{eve}"]}]
    cloud.iam.create(world.organization, granted)
    assert cloud.iam.allowed(eve, "billing.budgets.get", budget)
    assert cloud.iam.allowed(eve, "billing.budgets.get", f"{P}/locations/x")
    assert not cloud.iam.allowed(eve, "billing.budgets.get", "billingAccounts/other/budgets/1")


def test_a_regional_host_and_system_parameters_are_googles(cloud: CloudFront) -> None:
    for host in (f"{REGION}-artifactregistry", f"artifactregistry.{REGION}.rep"):
        url = REPOSITORIES.replace("artifactregistry", host, 1)
        assert cloud.request("GET", f"{url}?$alt=json;enum-encoding=int&$prettyPrint=false").status == 200
    assert (
        cloud.request("GET", REPOSITORIES.replace("artifactregistry", "moon-artifactregistry")).status == 404
    )
    alpha = cloud.request("GET", f"compute.googleapis.com/compute/alpha/{P}/zones")
    assert alpha.status == 501, "a version that isn't served is another API"


# Lists


def test_lists_have_filters_and_an_order(cloud: CloudFront) -> None:
    for n in (2, 3, 1):
        repository(cloud, description=f"d{n}", labels={"n": str(n)})
    json = cloud.request("GET", f"{REPOSITORIES}?filter=labels.n%3D3%20AND%20format%3DDOCKER").json
    assert [item["description"] for item in json["repositories"]] == ["d3"]
    down = cloud.request("GET", f"{REPOSITORIES}?orderBy=description%20desc").json["repositories"]
    assert [item["description"] for item in down if "description" in item] == ["d3", "d2", "d1"]
    by_two = cloud.request("GET", f"{REPOSITORIES}?orderBy=description%20desc,name").json["repositories"]
    assert [item["description"] for item in by_two if "description" in item] == ["d3", "d2", "d1"]
    assert cloud.request("GET", f"{REPOSITORIES}?pageToken=x").status == 400
    strange = cloud.request("GET", f"{REPOSITORIES}?filter=a%20OR%20b")
    assert (strange.status, "filter" in strange.error) == (501, True)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("", True),
        ('name = "net"', True),
        ("name=n*", True),
        ("name != net", False),
        ("labels.env:prod", True),
        ("labels.missing:*", False),
        ("(name eq n.*) (sizeGb > 9)", True),
        ("name eq n", False),
        ("sizeGb < 9", False),
        ("size_gb >= 10 AND enabled = true", True),
    ],
)
def test_a_plain_filter(expression: str, wanted: bool) -> None:
    item = {"name": "net", "labels": {"env": "production"}, "sizeGb": "10", "enabled": True}
    assert predicate(expression)(item) is wanted


@pytest.mark.parametrize("expression", ["name", "a=b OR c=d", "NOT a=b", "f(a)=b", "a=b c=d", "(a=b"])
def test_any_other_filter_is_not_emulated(expression: str) -> None:
    with pytest.raises(NotEmulatedError):
        predicate(expression)


def test_computes_lists_are_paged_and_aggregated(cloud: CloudFront, subnet: str) -> None:
    for zone in ("us-east5-a", ZONE):
        cloud.done(cloud.compute("POST", f"zones/{zone}/disks", {"name": "paged", "sizeGb": 10}))
    first = cloud.compute("GET", "zones?maxResults=2&returnPartialSuccess=true").json
    second = cloud.compute("GET", f"zones?maxResults=2&pageToken={first['nextPageToken']}").json
    assert [len(page["items"]) for page in (first, second)] == [2, 1]
    items = cloud.compute("GET", "zones?filter=region%20eq%20%22.*us-east5%22").json["items"]
    assert [zone["name"] for zone in items] == ["us-east5-a", "us-east5-b"]
    scopes = cloud.compute("GET", "aggregated/disks").json["items"]
    assert [item["name"] for item in scopes[f"zones/{ZONE}"]["disks"]] == ["paged"]
    assert scopes["zones/us-central1-b"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    assert f"regions/{REGION}" in cloud.compute("GET", "aggregated/subnetworks").json["items"]
    assert cloud.compute("GET", "aggregated/instances").status == 200
    begun = cloud.compute("GET", "aggregated/operations?filter=operationType%20eq%20insert").json["items"]
    assert {item["targetLink"].rpartition("/")[2] for item in begun[f"zones/{ZONE}"]["operations"]} >= {
        "paged"
    }
    assert {"net"} <= {
        operation["targetLink"].rpartition("/")[2] for operation in begun["global"]["operations"]
    }
    assert begun["zones/us-central1-b"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"


# Compute


def test_a_network_keeps_its_name_and_shows_its_number(cloud: CloudFront, subnet: str) -> None:
    renamed = cloud.compute("PATCH", "global/networks/net", {"name": "other", "mtu": 8896})
    assert (renamed.status, "resource.name" in renamed.error) == (400, True)
    assert cloud.compute("POST", "global/networks", {"name": "of-auto-mode"}).status == 501
    shown = cloud.compute("GET", "global/networks/net").json
    assert shown["selfLinkWithId"].endswith(f"/global/networks/{shown['id']}")
    assert shown["mtu"] == 1460


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({f"k{n}": "v" for n in range(65)}, "at most 64 labels"),
        ({"Env": "dev"}, "Label key 'Env'"),
        ({"env": "Dev"}, "Label value 'Dev'"),
    ],
)
def test_labels_are_checked(cloud: CloudFront, labels: dict[str, str], message: str) -> None:
    body = {"name": fresh("disk"), "sizeGb": 10, "labels": labels}
    assert message in cloud.compute("POST", f"zones/{ZONE}/disks", body).error


def test_an_address_is_in_use_while_a_machine_has_it(cloud: CloudFront, subnet: str) -> None:
    for kind in ("EXTERNAL", "INTERNAL"):
        body = {"name": f"a-{kind.lower()}", "addressType": kind, "subnetwork": subnet}
        body = body if kind == "INTERNAL" else {k: v for k, v in body.items() if k != "subnetwork"}
        cloud.done(cloud.compute("POST", f"regions/{REGION}/addresses", body))
    given = [
        cloud.compute("GET", f"regions/{REGION}/addresses/a-{kind}").json for kind in ("external", "internal")
    ]
    assert [item["status"] for item in given] == ["RESERVED"] * 2
    machine = {
        "name": "vm",
        "machineType": f"zones/{ZONE}/machineTypes/e2-small",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"diskSizeGb": 20}}],
        "networkInterfaces": [
            {
                "subnetwork": subnet,
                "networkIP": given[1]["address"],
                "accessConfigs": [{"natIP": given[0]["address"]}],
            }
        ],
    }
    templated = f"zones/{ZONE}/instances?sourceInstanceTemplate=global/instanceTemplates/t"
    assert cloud.compute("POST", templated, machine).status == 501
    cloud.done(cloud.compute("POST", f"zones/{ZONE}/instances", machine))
    shown = cloud.compute("GET", f"zones/{ZONE}/instances/vm").json
    assert (shown["status"], shown["networkInterfaces"][0]["name"]) == ("RUNNING", "nic0")
    assert cloud.compute("GET", f"regions/{REGION}/addresses/a-external").json["status"] == "IN_USE"
    assert cloud.compute("GET", f"zones/{ZONE}/disks/vm").json["users"] == [shown["selfLink"]]
    for path in (subnet, f"regions/{REGION}/addresses/a-internal", f"zones/{ZONE}/disks/vm"):
        assert "already being used by" in cloud.compute("DELETE", path).error
    stale = {"items": [{"key": "a", "value": "b"}], "fingerprint": "AAAA"}
    assert cloud.compute("POST", f"zones/{ZONE}/instances/vm/setMetadata", stale).status == 412
    larger = {"machineType": f"zones/{ZONE}/machineTypes/e2-medium"}
    assert (
        "is in RUNNING state"
        in cloud.compute("POST", f"zones/{ZONE}/instances/vm/setMachineType", larger).error
    )
    cloud.done(cloud.compute("POST", f"zones/{ZONE}/instances/vm/stop"))
    elsewhere = {"machineType": "zones/us-east5-c/machineTypes/e2-medium"}
    assert cloud.compute("POST", f"zones/{ZONE}/instances/vm/setMachineType", elsewhere).status == 400
    cloud.done(cloud.compute("POST", f"zones/{ZONE}/instances/vm/setMachineType", larger))
    stopped = cloud.compute("GET", f"zones/{ZONE}/instances/vm").json
    assert (stopped["status"], stopped["machineType"].rpartition("/")[2]) == ("TERMINATED", "e2-medium")
    cloud.done(cloud.compute("DELETE", f"zones/{ZONE}/instances/vm"))
    assert cloud.compute("GET", f"zones/{ZONE}/disks/vm").status == 404
    assert cloud.compute("GET", f"regions/{REGION}/addresses/a-internal").json["status"] == "RESERVED"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"machineType": "e2-small"}, "The URL is malformed"),
        ({"machineType": "zones/us-east5-a/machineTypes/e2-small"}, "The URL is malformed"),
        ({"disks": []}, "resource.disks"),
        ({"networkInterfaces": [{"subnetwork": f"regions/{REGION}/subnetworks/none"}]}, "was not found"),
        ({"networkInterfaces": [{"network": "global/networks/net"}]}, "needs a subnetwork"),
        ({"networkInterfaces": [{"subnetwork": SUBNET, "networkIP": "10.9.0.1"}]}, "outside the subnetwork"),
        (
            {"networkInterfaces": [{"subnetwork": SUBNET, "accessConfigs": [{"natIP": "198.51.100.77"}]}]},
            "was not found, or is in use",
        ),
        (
            {"disks": [{"boot": True, "initializeParams": {"sourceImage": "global/images/mine"}}]},
            "images/mine' was not found",
        ),
    ],
)
def test_machines_are_checked(cloud: CloudFront, subnet: str, change: dict[str, Any], message: str) -> None:
    body = {
        "name": fresh("vm"),
        "machineType": f"zones/{ZONE}/machineTypes/e2-small",
        "disks": [{"boot": True, "initializeParams": {}}],
        "networkInterfaces": [{"subnetwork": subnet}],
        **change,
    }
    assert message in cloud.compute("POST", f"zones/{ZONE}/instances", body).error


# GKE


@pytest.fixture(name="cluster")
def _cluster(cloud: CloudFront, subnet: str) -> Iterator[str]:
    """The address of a cluster with its default pool."""
    name = fresh("cluster")
    body = {"cluster": {"name": name, "network": "net", "subnetwork": "sub", "initialNodeCount": 1}}
    done = gke(cloud, cloud.request("POST", CLUSTERS, body))
    assert done["operationType"] == "CREATE_CLUSTER"
    assert done["targetLink"].endswith(f"/projects/{NUMBER}/locations/{REGION}/clusters/{name}")
    yield f"{CLUSTERS}/{name}"
    gke(cloud, cloud.request("DELETE", f"{CLUSTERS}/{name}"))
    assert cloud.request("GET", f"{CLUSTERS}/{name}/nodePools/default-pool").status == 404


def test_a_cluster_has_its_pools_and_is_changed_one_operation_at_a_time(
    cloud: CloudFront, cluster: str
) -> None:
    shown = cloud.request("GET", cluster).json
    assert (shown["status"], [pool["name"] for pool in shown["nodePools"]]) == ("RUNNING", ["default-pool"])
    pool = {"name": "v6e", "initialNodeCount": 2, "config": {"machineType": "ct6e-standard-4t"}}
    with cloud.stopped_clock():
        begun = cloud.request("POST", f"{cluster}/nodePools", {"nodePool": pool})
        reply = cloud.request("POST", f"{cluster}/nodePools", {"nodePool": {**pool, "name": "other"}})
        text = f"Cluster is running incompatible operation {begun.json['name']}."
        assert refused(reply) == (400, text)
        assert cloud.request("GET", f"{cluster}/nodePools/v6e").json["status"] == "PROVISIONING"
    assert gke(cloud, begun)["operationType"] == "CREATE_NODE_POOL"
    resized = gke(cloud, cloud.request("POST", f"{cluster}/nodePools/v6e:setSize", {"nodeCount": 3}))
    assert resized["operationType"] == "SET_NODE_POOL_SIZE"
    update = {"tags": {"tags": ["tpu"]}, "nodeVersion": "1.34"}
    gke(cloud, cloud.request("PUT", f"{cluster}/nodePools/v6e", update))
    body = cloud.request("GET", f"{cluster}/nodePools/v6e").json
    assert (body["initialNodeCount"], body["version"], body["config"]["tags"]) == (3, "1.34", ["tpu"])
    gke(cloud, cloud.request("PUT", cluster, {"update": {"desiredMasterVersion": "1.35"}}))
    assert cloud.request("GET", cluster).json["currentMasterVersion"] == "1.35"
    moved = cloud.request("PUT", cluster, {"update": {"desiredNodePoolId": "v6e"}})
    assert (moved.status, "ClusterUpdate.desiredNodePoolId" in moved.error) == (501, True)
    network = cloud.compute("DELETE", "global/networks/net")
    assert "already being used by" in network.error


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"network": "none"}, 404, "networks/none' was not found"),
        ({"initialNodeCount": 0}, 400, "must be greater than zero"),
        ({"name": "Big"}, 400, "must match"),
        ({"nodePool": []}, 400, 'Unknown name "nodePool"'),
        ({"autopilot": {"enabled": True}}, 501, "not emulated"),
    ],
)
def test_clusters_are_checked(
    cloud: CloudFront, subnet: str, change: dict[str, Any], status: int, message: str
) -> None:
    body = {"name": fresh("cluster"), "network": "net", "subnetwork": "sub", "initialNodeCount": 1, **change}
    reply = cloud.request("POST", CLUSTERS, {"cluster": body})
    assert (reply.status, message in reply.error) == (status, True), reply.body


def test_a_key_ring_needs_a_place_of_googles(cloud: CloudFront) -> None:
    reply = cloud.request("POST", f"{RINGS.replace(REGION, 'mars-1')}?keyRingId=ring")
    assert (reply.status, "'mars-1'" in reply.error) == (404, True)
    assert cloud.request("POST", f"{RINGS.replace(REGION, 'global')}?keyRingId=ring").status == 200

"""Resources as a Terraform plan: names, blocks, what is left out, references."""

import json
from typing import Any

import pytest

from google_facts.terraform import type_name
from infra.errors import InfraError
from infra.policy import Resource
from infra.policy.terraform import document
from tests.infra.declared import LAYERS, declared
from tests.infra.recording import UNKNOWN

SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "hunter2"}
FILE = {"4dabf18193072939515e22adb298388d": "c44067f5952c0a294b673a41bacd8c17", "path": "/tmp/f.zip"}
TYPES = {
    "gcp:artifactregistry/repository:Repository": "google_artifact_registry_repository",
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": (
        "google_artifact_registry_repository_iam_member"
    ),
    "gcp:billing/budget:Budget": "google_billing_budget",
    "gcp:cloudfunctionsv2/function:Function": "google_cloudfunctions2_function",
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": "google_cloud_run_v2_service_iam_member",
    "gcp:cloudscheduler/job:Job": "google_cloud_scheduler_job",
    "gcp:compute/address:Address": "google_compute_address",
    "gcp:compute/disk:Disk": "google_compute_disk",
    "gcp:compute/firewall:Firewall": "google_compute_firewall",
    "gcp:compute/instance:Instance": "google_compute_instance",
    "gcp:compute/network:Network": "google_compute_network",
    "gcp:compute/router:Router": "google_compute_router",
    "gcp:compute/routerNat:RouterNat": "google_compute_router_nat",
    "gcp:compute/subnetwork:Subnetwork": "google_compute_subnetwork",
    "gcp:container/cluster:Cluster": "google_container_cluster",
    "gcp:container/nodePool:NodePool": "google_container_node_pool",
    "gcp:eventarc/trigger:Trigger": "google_eventarc_trigger",
    "gcp:filestore/instance:Instance": "google_filestore_instance",
    "gcp:kms/cryptoKey:CryptoKey": "google_kms_crypto_key",
    "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember": "google_kms_crypto_key_iam_member",
    "gcp:kms/keyRing:KeyRing": "google_kms_key_ring",
    "gcp:logging/metric:Metric": "google_logging_metric",
    "gcp:monitoring/alertPolicy:AlertPolicy": "google_monitoring_alert_policy",
    "gcp:monitoring/dashboard:Dashboard": "google_monitoring_dashboard",
    "gcp:monitoring/notificationChannel:NotificationChannel": "google_monitoring_notification_channel",
    "gcp:projects/iAMCustomRole:IAMCustomRole": "google_project_iam_custom_role",
    "gcp:projects/iAMMember:IAMMember": "google_project_iam_member",
    "gcp:projects/service:Service": "google_project_service",
    "gcp:projects/serviceIdentity:ServiceIdentity": "google_project_service_identity",
    "gcp:pubsub/topic:Topic": "google_pubsub_topic",
    "gcp:pubsub/topicIAMMember:TopicIAMMember": "google_pubsub_topic_iam_member",
    "gcp:secretmanager/secret:Secret": "google_secret_manager_secret",
    "gcp:secretmanager/secretIamMember:SecretIamMember": "google_secret_manager_secret_iam_member",
    "gcp:serviceaccount/account:Account": "google_service_account",
    "gcp:serviceaccount/iAMMember:IAMMember": "google_service_account_iam_member",
    "gcp:storage/bucket:Bucket": "google_storage_bucket",
    "gcp:storage/bucketIAMMember:BucketIAMMember": "google_storage_bucket_iam_member",
    "gcp:storage/bucketObject:BucketObject": "google_storage_bucket_object",
    "gcp:tpu/v2Vm:V2Vm": "google_tpu_v2_vm",
}
"""All types that layers declare. Their names, and those of all their lists at any depth, were compared with
provider/cmd/pulumi-resource-gcp/bridge-metadata.json of pulumi-gcp at ed6078aa (2026-08-21), on 2026-11-24.
For another type do the same; lists in the plural that Terraform has in the singular go to `_SINGULAR`.
"""


def planned(kind: str, **inputs: Any) -> tuple[dict[str, Any], Any]:
    """The values of a resource, and which aren't known."""
    done = document({"net": [Resource(kind, "one", inputs)]})
    (item,) = done["planned_values"]["root_module"]["resources"]
    (change,) = done["resource_changes"]
    assert item["address"] == change["address"] == f"{type_name(kind)}.net_one"
    assert change["change"]["after"] == item["values"]
    return item["values"], change["change"]["after_unknown"]


def test_names_of_all_types_that_layers_declare_were_compared_with_the_providers() -> None:
    types = {resource.type for layer in LAYERS for resource in declared(layer).resources}
    assert {kind for kind in types if kind.startswith("gcp:")} == set(TYPES)
    assert {kind: type_name(kind) for kind in TYPES} == TYPES


def test_one_object_is_a_list_of_one_and_lists_have_terraforms_names() -> None:
    rule = {"action": {"type": "Delete"}, "condition": {"age": 30.0, "matchesPrefixes": ["tmp/"]}}
    values, hidden = planned(
        "gcp:storage/bucket:Bucket", name="b", lifecycleRules=[rule], versioning={"enabled": True}
    )
    assert hidden == {}
    assert values == {
        "name": "b",
        "lifecycle_rule": [
            {"action": [{"type": "Delete"}], "condition": [{"age": 30, "matches_prefix": ["tmp/"]}]}
        ],
        "versioning": [{"enabled": True}],
    }


def test_keys_of_maps_stay_as_they_are() -> None:
    values, _ = planned("gcp:tpu/v2Vm:V2Vm", metadata={"enable-oslogin": "TRUE", "startupScript": "x"})
    assert values == {"metadata": {"enable-oslogin": "TRUE", "startupScript": "x"}}


def test_what_isnt_known_secrets_and_files_are_left_out_and_marked() -> None:
    kind = "gcp:storage/bucketObject:BucketObject"
    values, hidden = planned(kind, bucket=UNKNOWN, name="o", content=SECRET, source=FILE, __defaults=[])
    assert values == {"name": "o"}
    assert hidden == {"bucket": True, "content": True, "source": True}
    values, hidden = planned(
        "gcp:tpu/v2Vm:V2Vm",
        metadata={"token": SECRET, "x": "1"},
        serviceAccount={"email": UNKNOWN, "scopes": ["a", UNKNOWN]},
    )
    assert values == {"metadata": {"x": "1"}, "service_account": [{"scope": ["a"]}]}
    assert hidden == {
        "metadata": {"token": True},
        "service_account": [{"email": True, "scope": [False, True]}],
    }
    assert "hunter2" not in json.dumps([values, hidden])


def test_what_an_input_was_made_of_is_a_reference() -> None:
    network = Resource("gcp:compute/network:Network", "n", {"name": "n"})
    urn = "urn:pulumi:dev::network::tpu:network:TrainingNetwork$gcp:compute/network:Network::n"
    firewall = Resource(
        "gcp:compute/firewall:Firewall", "f", {"network": UNKNOWN}, depends={"network": [urn, "urn:other"]}
    )
    done = document({"network": [network, firewall]})
    (_, rule) = done["configuration"]["root_module"]["resources"]
    to = "google_compute_network.network_n"
    assert rule["expressions"] == {"network": {"references": [f"{to}.id", to]}}


def test_each_resource_has_an_address_of_its_own() -> None:
    kind = "gcp:projects/iAMMember:IAMMember"
    done = document({"net": [Resource(kind, name, {"role": "r"}) for name in ("a@b", "a b", "a_b")]})
    addresses = [resource_change["address"].partition(".")[2] for resource_change in done["resource_changes"]]
    assert addresses == ["net_a_b", "net_a_b_2", "net_a_b_3"]


def test_other_providers_resources_are_left_out() -> None:
    pod = Resource("kubernetes:core/v1:Pod", "p", {"spec": {}})
    assert document({"queue": [pod, Resource("tpu:queue:TeamSpace", "t", {})]})["resource_changes"] == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("gcp:storage/bucket:Bucket", "gcp:storage/bucket:Bucket one: wings of BucketArgs"),
        ("gcp:storage/pail:Pail", "gcp:storage/pail:Pail one: PailArgs of pulumi_gcp.storage"),
        ("gcp:pails/pail:Pail", "gcp:pails/pail:Pail one: PailArgs of pulumi_gcp.pails"),
    ],
)
def test_what_the_sdk_doesnt_know_is_named(kind: str, message: str) -> None:
    with pytest.raises(InfraError) as raised:
        document({"net": [Resource(kind, "one", {"wings": 2})]})
    assert message in str(raised.value)

"""Declarations of the GKE layer."""

import json
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest

from infra.errors import CommandError
from infra.layers.gke.facts import CHANNELS
from infra.layers.gke.pools import block
from infra.layers.gke.program import dns_name
from tests.infra.recording import BASE, DNS_NAME, UNKNOWN, Recording, parsed, run

CLUSTER, POOL = "gcp:container/cluster:Cluster", "gcp:container/nodePool:NodePool"
SUBNET, BUCKET = "gcp:compute/subnetwork:Subnetwork", "gcp:storage/bucket:Bucket"
BUCKET_MEMBER = "gcp:storage/bucketIAMMember:BucketIAMMember"
BUCKETS = ("bucket-that-is-up", "steps-bucket-that-is-up")
TRAIN: dict[str, Any] = {"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b"}
NODES = "tpu-gke-nodes@my-project.iam.gserviceaccount.com"


def up(*pools: dict[str, Any], preview: bool = False, environment: str = "dev", **changes: Any) -> Recording:
    settings = {f"gke:{key}": value for key, value in changes.items()}
    given = {"gke:tpuPools": list(pools or [TRAIN]), **settings}
    return run("gke", given, preview=preview, environment=environment)


@pytest.mark.parametrize("preview", [True, False])
def test_a_regional_cluster_without_public_addresses(preview: bool) -> None:
    recording = up(preview=preview)
    inputs = recording.only(CLUSTER).inputs
    assert inputs.pop("nodeConfig") == {
        "serviceAccount": NODES,
        "oauthScopes": ["https://www.googleapis.com/auth/cloud-platform"],
    }
    subnet = "projects/my-project/regions/us-east5/subnetworks/tpu-training-tpu"
    assert inputs == {
        "name": "tpu",
        "location": "us-east5",
        "nodeLocations": ["us-east5-b"],
        "description": "Training on TPU slices",
        "network": "projects/my-project/global/networks/up",
        "subnetwork": UNKNOWN if preview else subnet,
        "networkingMode": "VPC_NATIVE",
        "ipAllocationPolicy": {"clusterSecondaryRangeName": "pods", "servicesSecondaryRangeName": "services"},
        "datapathProvider": "ADVANCED_DATAPATH",
        "privateClusterConfig": {"enablePrivateNodes": True},
        "controlPlaneEndpointsConfig": {
            "dnsEndpointConfig": {"allowExternalTraffic": True},
            "ipEndpointsConfig": {"enabled": False},
        },
        "releaseChannel": {"channel": "REGULAR"},
        "minMasterVersion": "1.35",
        "maintenancePolicy": {
            "dailyMaintenanceWindow": {"startTime": "03:00"},
            "maintenanceExclusions": [
                {
                    "exclusionName": "no-upgrades",
                    "startTime": "2026-01-01T00:00:00Z",
                    "exclusionOptions": {
                        "scope": "NO_MINOR_OR_NODE_UPGRADES",
                        "endTimeBehavior": "UNTIL_END_OF_SUPPORT",
                    },
                }
            ],
        },
        "workloadIdentityConfig": {"workloadPool": "my-project.svc.id.goog"},
        "addonsConfig": {
            "gcsFuseCsiDriverConfig": {"enabled": True},
            "gcePersistentDiskCsiDriverConfig": {"enabled": True},
            "gcpFilestoreCsiDriverConfig": {"enabled": True},
        },
        "loggingConfig": {"enableComponents": ["SYSTEM_COMPONENTS", "WORKLOADS"]},
        "monitoringConfig": {
            "enableComponents": ["SYSTEM_COMPONENTS", "JOBSET"],
            "managedPrometheus": {"enabled": True},
        },
        "deletionProtection": False,
        "initialNodeCount": 1,
        "removeDefaultNodePool": True,
    }
    assert recording.only(SUBNET).inputs == {
        "name": "tpu-training-tpu",
        "network": "projects/my-project/global/networks/up",
        "region": "us-east5",
        "ipCidrRange": "10.129.0.0/20",
        "secondaryIpRanges": [
            {"rangeName": "pods", "ipCidrRange": "192.168.64.0/20"},
            {"rangeName": "services", "ipCidrRange": "192.168.80.0/20"},
        ],
        "privateIpGoogleAccess": True,
        "logConfig": {
            "aggregationInterval": "INTERVAL_10_MIN",
            "flowSampling": 0.5,
            "metadata": "INCLUDE_ALL_METADATA",
        },
    }


@pytest.mark.parametrize("preview", [True, False])
def test_a_node_pool_is_a_slice(preview: bool) -> None:
    recording = up({**TRAIN, "count": 2, "labels": {"team": "vision"}}, preview=preview)
    assert [pool.name for pool in recording.of(POOL)] == ["cpu", "train-0", "train-1"]
    assert recording.named(POOL, "train-1").inputs == {
        "name": "train-1",
        "cluster": "tpu",
        "location": "us-east5",
        "nodeLocations": ["us-east5-b"],
        "nodeCount": 4,
        "maxPodsPerNode": 15,
        "placementPolicy": {"type": "COMPACT", "tpuTopology": "4x4"},
        "management": {"autoRepair": True, "autoUpgrade": True},
        "networkConfig": {"enablePrivateNodes": True},
        "nodeConfig": {
            "machineType": "ct6e-standard-4t",
            "diskType": "hyperdisk-balanced",
            "diskSizeGb": 100,
            "gvnic": {"enabled": True},
            "labels": {"multislice-group": "multi-slice-group", "tpu-provisioning": "on-demand"},
            "resourceLabels": {"team": "vision"},
            "taints": [{"key": "google.com/tpu", "value": "present", "effect": "NO_SCHEDULE"}],
            "serviceAccount": NODES,  # known in a plan, or the policy couldn't judge it
            "oauthScopes": ["https://www.googleapis.com/auth/cloud-platform"],
            "workloadMetadataConfig": {"mode": "GKE_METADATA"},
            "shieldedInstanceConfig": {"enableSecureBoot": True, "enableIntegrityMonitoring": True},
        },
    }
    assert recording.named(POOL, "cpu").inputs == {
        "name": "cpu",
        "cluster": "tpu",
        "location": "us-east5",
        "nodeLocations": ["us-east5-b"],
        "nodeCount": 3,
        "maxPodsPerNode": 110,
        "management": {"autoRepair": True, "autoUpgrade": True},
        "networkConfig": {"enablePrivateNodes": True},
        "nodeConfig": {
            "machineType": "n2-standard-4",
            "diskType": "pd-balanced",
            "diskSizeGb": 200,
            "serviceAccount": NODES,  # known in a plan, or the policy couldn't judge it
            "oauthScopes": ["https://www.googleapis.com/auth/cloud-platform"],
            "workloadMetadataConfig": {"mode": "GKE_METADATA"},
            "shieldedInstanceConfig": {"enableSecureBoot": True, "enableIntegrityMonitoring": True},
        },
    }


@pytest.mark.parametrize("preview", [True, False])
def test_without_slices_the_cluster_stays(preview: bool) -> None:
    recording = up({**TRAIN, "count": 0}, preview=preview)
    assert [pool.name for pool in recording.of(POOL)] == ["cpu"]
    assert recording.only(CLUSTER).inputs["nodeLocations"] == ["us-east5-b"]


SIZES = [
    ("v6e-1", None, 1, "ct6e-standard-1t", None),
    ("v6e-4", None, 1, "ct6e-standard-4t", None),
    ("v6e-8", None, 1, "ct6e-standard-8t", None),
    ("v6e-8", "ct6e-standard-4t", 2, "ct6e-standard-4t", "2x4"),
    ("v6e-32", None, 8, "ct6e-standard-4t", "4x8"),
    ("v6e-256", None, 64, "ct6e-standard-4t", "16x16"),
]


@pytest.mark.parametrize(("kind", "given", "nodes", "machine", "topology"), SIZES)
def test_nodes_and_machine_come_from_the_size(
    kind: str, given: str | None, nodes: int, machine: str, topology: str | None
) -> None:
    node = {**TRAIN, "acceleratorType": kind, "numNodes": nodes} | ({"machineType": given} if given else {})
    inputs = up(node).named(POOL, "train-0").inputs
    assert (inputs["nodeCount"], inputs["nodeConfig"]["machineType"]) == (nodes, machine)
    # GKE refuses a placement with a topology for a slice of one machine.
    assert inputs.get("placementPolicy", {}).get("tpuTopology") == topology


def config(**how: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    inputs = up({**TRAIN, **how}).named(POOL, "train-0").inputs
    return inputs, inputs["nodeConfig"]


def test_spot() -> None:
    inputs, node = config(spot=True)
    assert node["spot"] is True
    assert inputs["nodeCount"] == 4


def test_pools_scale_between_none_and_all() -> None:
    inputs, _ = config(autoscaling=True)
    assert "nodeCount" not in inputs
    assert inputs["initialNodeCount"] == 0
    assert inputs["autoscaling"] == {"minNodeCount": 0, "maxNodeCount": 4, "locationPolicy": "BALANCED"}


def test_flex_start_begins_with_no_node_and_ends_after_a_week() -> None:
    inputs, node = config(flexStart=True)
    assert (inputs["initialNodeCount"], inputs["autoscaling"]["maxNodeCount"]) == (0, 4)
    assert inputs["autoscaling"]["locationPolicy"] == "ANY"
    assert inputs["management"] == {"autoRepair": False, "autoUpgrade": True}
    assert (node["flexStart"], node["maxRunDuration"]) == (True, "604800s")
    assert node["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    _, node = config(flexStart=True, maxRunDurationS=3600)
    assert node["maxRunDuration"] == "3600s"


def test_queued_pools_wait_for_provisioning_requests() -> None:
    """As Google's blueprint has it: flex-start machines, with a label that GKE doesn't set."""
    inputs, node = config(queued=True)
    assert inputs["queuedProvisioning"] == {"enabled": True}
    assert inputs["initialNodeCount"] == 0
    assert inputs["autoscaling"] == {"minNodeCount": 0, "maxNodeCount": 4, "locationPolicy": "ANY"}
    assert inputs["management"] == {"autoRepair": False, "autoUpgrade": True}
    assert node["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert node["flexStart"] is True
    assert node["labels"]["cloud.google.com/gke-queued"] == "true"
    assert "maxRunDuration" not in node
    assert config(queued=True, flexStart=True) == (inputs, node)


def test_a_reservation_is_named() -> None:
    inputs, node = config(reservation="ours")
    assert inputs["nodeCount"] == 4
    assert node["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["ours"],
    }


@pytest.mark.parametrize("force", [True, False])
def test_the_artifact_bucket_outlives_the_stack_unless_it_is_given_up(force: bool) -> None:
    recording = up(artifactBucket="my-project-artifacts", forceDestroy=force)
    bucket = recording.only(BUCKET)
    assert bucket.inputs == {
        "name": "my-project-artifacts",
        "location": "us-east5",
        "uniformBucketLevelAccess": True,
        "publicAccessPrevention": "enforced",
        "forceDestroy": force,
        "lifecycleRules": [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7.0}}],
    }
    assert bucket.options.get("protect", False) is not force
    assert bucket.options.get("retainOnDelete", False) is not force
    assert recording.exports["artifactBucket"] == "my-project-artifacts"
    granted_on = {resource.inputs["bucket"] for resource in recording.of(BUCKET_MEMBER)}
    assert granted_on == {*BUCKETS, "my-project-artifacts"}


def test_outputs() -> None:
    recording = up(TRAIN, {"name": "big", "acceleratorType": "v6e-256", "zone": "us-east5-b", "spot": True})
    exports = recording.exports
    config = json.loads(exports.pop("kubeconfig"))
    assert exports.pop("pools") == [
        {
            "name": "train-0", "acceleratorType": "v6e-16", "topology": "4x4",
            "machineType": "ct6e-standard-4t", "hosts": 4, "chips": 16, "zone": "us-east5-b",
            "provisioning": "on demand", "provisioningLabel": "on-demand", "scales": False,
            "pricePerHour": pytest.approx(16 * 2.70),
        },
        {
            "name": "big-0", "acceleratorType": "v6e-256", "topology": "16x16",
            "machineType": "ct6e-standard-4t", "hosts": 64, "chips": 256, "zone": "us-east5-b",
            "provisioning": "spot", "provisioningLabel": "spot", "scales": False,
            "pricePerHour": pytest.approx(256 * 1.4033),
        },
    ]  # fmt: skip
    assert exports == {
        "clusterName": "tpu",
        "location": "us-east5",
        "endpoint": DNS_NAME,
        "workloadPool": "my-project.svc.id.goog",
        "namespaces": ["tpu-training"],
        "kubernetesAccount": "trainer",
        "multisliceGroup": "multi-slice-group",
        "pricePerHour": pytest.approx(0.10 + 3 * (0.194236 + 20 / 730) + 16 * 2.70 + 256 * 1.4033),
        "nodeAccountEmail": NODES,
    }
    name = "gke_my-project_us-east5_tpu"
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1", "command": "gke-gcloud-auth-plugin",
        "args": ["--use_application_default_credentials"],
        "installHint": "gcloud components install gke-gcloud-auth-plugin", "interactiveMode": "Never",
        "provideClusterInfo": True,
    }  # fmt: skip
    assert config == {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"https://{DNS_NAME}"}}],
        "users": [{"name": name, "user": {"exec": plugin}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }, "no token in the state"


def test_a_price_that_nobody_knows_is_left_out() -> None:
    recording = up({**TRAIN, "reservation": "ours"})
    assert "pricePerHour" not in recording.exports
    assert recording.exports["pools"][0]["pricePerHour"] is None


def test_an_existing_subnet_is_used_as_it_is() -> None:
    subnet = "projects/my-project/regions/us-east5/subnetworks/gke"
    recording = up(existingSubnet=subnet, podsRangeName="p", servicesRangeName="s")
    assert not recording.of(SUBNET)
    inputs = recording.only(CLUSTER).inputs
    assert inputs["subnetwork"] == subnet
    ranges = {"clusterSecondaryRangeName": "p", "servicesSecondaryRangeName": "s"}
    assert inputs["ipAllocationPolicy"] == ranges


FITS: list[dict[str, Any]] = [
    # 104 TPU nodes of /27 and 3 CPU nodes of /24 are the 4,096 addresses of a /20.
    {"gke:tpuPools": [{**TRAIN, "count": 26}]},
    # 120 TPU and 4 CPU nodes are what Google leaves of a /25.
    {"gke:tpuPools": [{**TRAIN, "count": 30}], "gke:cpuPoolNodes": 4, "gke:subnetRange": "10.129.0.0/25",
     "gke:podsRange": "192.168.0.0/19"},
    {"gke:tpuPools": [TRAIN, {**TRAIN, "name": "train-b"}, {**TRAIN, "name": "other-1"}]},
    # An existing subnet has ranges of its own, whatever the defaults of ours are.
    {"gke:tpuPools": [{**TRAIN, "count": 100}], "network:subnetRanges": {"us-east5": "10.129.0.0/20"},
     "gke:existingSubnet": "projects/my-project/regions/us-east5/subnetworks/gke"},
    # Ranges that GKE takes for pods and a VPC has for little else.
    *({"gke:tpuPools": [TRAIN], "gke:podsRange": f"{first}/20"} for first in ("100.64.0.0", "240.0.0.0")),
    *({"gke:tpuPools": [TRAIN], "gke:cpuPoolMachineType": name, "gke:cpuPoolDiskType": disk}
      for name, disk in (("c3-standard-4-lssd", "pd-ssd"), ("n2-custom-4-16384", "pd-balanced"),
                         ("c4-standard-8", "hyperdisk-balanced"))),
    # The first and the last version of each channel.
    *({"gke:tpuPools": [TRAIN], "gke:channel": name, "gke:version": f"1.{minor}"}
      for name, channel in CHANNELS.items() for minor in (channel.first, channel.last)),
]  # fmt: skip


@pytest.mark.parametrize("given", FITS)
def test_what_just_fits_is_taken(given: dict[str, Any]) -> None:
    parsed({**BASE, **given})


@pytest.mark.parametrize(("pods", "addresses"), [
    (8, 16), (9, 32), (15, 32), (16, 32), (17, 64), (32, 64), (33, 128), (64, 128), (65, 256), (110, 256),
])  # fmt: skip
def test_a_nodes_block_is_the_smallest_power_of_two_of_twice_its_pods(pods: int, addresses: int) -> None:
    assert block(pods) == addresses


@pytest.mark.parametrize(("environment", "given", "protected"), [
    ("dev", None, False), ("dev", True, True), ("dev", False, False), ("staging", None, True),
    ("staging", False, False),
])  # fmt: skip
def test_every_cluster_but_that_of_dev_is_protected_unless_the_settings_say_otherwise(
    environment: str, given: bool | None, protected: bool
) -> None:
    requests = {} if given is None else {"gke:deletionProtection": given}
    requests |= {"gke:tpuPools": [TRAIN], "policy:enforcement": "advisory"}  # of a budget, and of this itself
    cluster = run("gke", requests, environment=environment).only(CLUSTER)
    assert cluster.inputs["deletionProtection"] is protected


def test_groups_are_known_by_the_one_that_the_settings_name() -> None:
    inputs = up(securityGroup=(group := "gke-security-groups@example.com")).only(CLUSTER).inputs
    assert inputs["authenticatorGroupsConfig"] == {"securityGroup": group}


def test_upgrades_may_come() -> None:
    policy = up(excludeUpgrades=False).only(CLUSTER).inputs["maintenancePolicy"]
    assert policy == {"dailyMaintenanceWindow": {"startTime": "03:00"}}


def test_what_the_channel_and_google_change_is_no_difference() -> None:
    ignored = up().only(CLUSTER).options["ignoreChanges"]
    assert set(ignored) == {
        "nodeConfig", "initialNodeCount", "minMasterVersion", "description",
        "privateClusterConfig.enablePrivateEndpoint",
    }  # fmt: skip
    for pool in up().of(POOL):
        assert pool.options["ignoreChanges"] == ["initialNodeCount"], "a pool that begins to scale stays"


def test_an_update_without_the_control_planes_name_fails_and_replaces_no_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config: Any = SimpleNamespace(dns_endpoint_config=SimpleNamespace(endpoint=""))
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
    fix = "no DNS endpoint yet\n    fix: pulumi -C infra/layers/gke refresh -s dev; then again"
    with pytest.raises(CommandError, match=fix):
        dns_name(config, "dev")
    monkeypatch.setattr("infra.core.layer.INSTALLED", True)
    with pytest.raises(CommandError, match=r"-C \.tpu/gke refresh -s dev"):
        dns_name(config, "dev")

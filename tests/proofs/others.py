"""Other values of settings, which no rule gives away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.layers.pipeline.settings import SMALL_ROLE
from infra.layers.slurm.settings import HOMES, TIERS, UNITS
from tests.infra.lab import BUNDLE, PROJECT

OTHER_BUNDLE, OTHER_IMAGE = "cd" * 32, "v2-alpha-tpuv6e-2"
# By the end of their path.
OTHERS: Mapping[str, Sequence[Any]] = {
    "Users": [["user:eve@example.com"]],
    "users": [["user:eve@example.com"]],
    "runners": [["user:eve@example.com"]],
    "viewers": [["user:eve@example.com"]],
    "acceleratorType": ["v6e-32", "v6e-4", "v6e-16"],
    "topology": ["4x4", "2x2"],
    "zone": ["us-east5-a", "us-east5-c"],
    "zones": [["us-east5-a"], ["us-east5-b"]],
    "location": ["us-central1"],
    "region": ["us-central1"],
    "storageClass": ["NEARLINE", "STANDARD"],
    "channel": ["RAPID", "STABLE"],
    "version": ["1.34", "1.36"],
    "maintenanceStart": ["05:00"],
    "Range": ["10.64.0.0/20", "192.168.128.0/20"],
    "subnetRanges": [{"us-east5": "10.9.0.0/23"}],
    "sshSourceRanges": [["35.235.240.0/21"]],
    "labels": [{"a": "c"}, {"b": "c"}, {}],
    "MachineType": ["n2-standard-8"],
    "DiskType": ["pd-ssd"],
    "cpuPoolZones": [["us-east5-b"], ["us-east5-a", "us-east5-b"]],
    "machineType": ["ct6e-standard-4t", "ct6e-standard-8t"],
    "runtimeVersion": [OTHER_IMAGE, "2.2"],
    "email": ["second@example.com"],
    "webhook": ["https://hooks.example.com/second"],
    "runbooks": ["https://example.com/second"],
    "topic": ["tpu-alerts-2"],
    "namespaces": [["vision", "speech"], ["speech"]],
    "securityGroup": ["gke-security-groups@example.com"],
    "schedule": ["0 5 * * *"],
    "trainZone": ["us-east5-a"],
    "nodeRoles": [["roles/container.defaultNodeServiceAccount", "roles/logging.viewer"]],
    "workloadRoles": [["roles/monitoring.metricWriter"]],
    "reservation": ["chips"],
    "run": ["train tiny.toml --name other", "train tiny.toml"],
    "bundle": [OTHER_BUNDLE, BUNDLE],
    "checkpointFolder": ["jobs/other"],
    "fallbackZones": [["us-east5-a"], ["us-east5-b"]],
    "additionalZones": [["us-east5-a"], ["us-central1-b"]],
    "numNodes": [4, 2, 1],
    "existing": [f"projects/{PROJECT}/notificationChannels/7"],
    "existingNetwork": [f"projects/{PROJECT}/global/networks/other"],
    "existingSubnets": [{"us-east5": f"projects/{PROJECT}/regions/us-east5/subnetworks/other"}],
    "existingSubnet": [f"projects/{PROJECT}/regions/us-east5/subnetworks/other"],
    "kmsKey": [f"projects/{PROJECT}/locations/us-east5/keyRings/other/cryptoKeys/other"],
    "tensorboard": [f"projects/{PROJECT}/locations/us-east5/tensorboards/1"],
    "image": [f"docker.io/library/python@sha256:{'1' * 64}"],
    "trainImage": [f"us-east5-docker.pkg.dev/{PROJECT}/images/train@sha256:{'1' * 64}"],
    "layers": [["storage"]],
    "code": ["1" * 64],
    "config": ["gs://my-project-raw/other.toml"],
    "changes": [["output.shards=2"]],
    "tier": ["premium"],
    "train": ["none", "vertex"],
    "trainSlice": ["v6e-4"],
    "trainTeam": ["vision"],
    "scheduleRegion": ["us-central1"],
    "sparkRole": [SMALL_ROLE],
    "nodeCountStatic": [4],
    "nUnit": UNITS,
    "homeStorage": HOMES,
    "filestoreTier": TIERS,
}

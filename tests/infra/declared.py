"""All layers with everything on, and what they declare: recorded once for all tests of a process."""

from __future__ import annotations

from functools import cache

from infra.engine.registry import layers
from tests.infra.recording import UPSTREAM, Recording, run

LAYERS = [layer.name for layer in layers()]
POOL = {
    "name": "train-0", "topology": "4x4", "machineType": "ct6e-standard-4t", "hosts": 4.0, "chips": 16.0,
    "zone": "us-east5-b", "provisioning": "spot", "provisioningLabel": "spot", "scales": False,
}  # fmt: skip
CLUSTER = {
    "pools": [POOL], "kubeconfig": "{}", "endpoint": "gke-1.us-east5.gke.goog", "clusterName": "tpu",
    "location": "us-east5", "nodeAccountEmail": "tpu-gke-nodes@my-project.iam.gserviceaccount.com",
}  # fmt: skip
UP = {**UPSTREAM, "gke": CLUSTER, "tpu": {"stackId": "0123abc", "slices": [], "fleets": []}}
"""Outputs of layers that others read."""
_GKE = {
    "gke:tpuPools": [{"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b"}],
    "gke:namespaces": ["vision"],
}
_QUEUE = {
    "queue:teams": [{"name": "vision", "members": ["user:ada@example.com"]}],
}
_BUILDS = {
    "storage:stateBucketName": "my-project-pulumi",
    "storage:stateKeyRing": "pulumi",
    "builds:image": f"docker.io/library/python@sha256:{'0' * 64}",
    "builds:users": ["group:sre@example.com"],
}
_PIPELINE = {"pipeline:rawBucketName": "my-project-raw", "pipeline:code": "0" * 64}
_SLURM = {
    "slurm:nodesets": [
        {"name": "slurm", "acceleratorType": "v6e-16", "zone": "us-east5-b", "nodeCountDynamicMax": 8}
    ],
    "slurm:bundle": "cd" * 32,
}
_MONITORING = {"monitoring:channels": [{"name": "oncall", "email": "oncall@example.com"}]}
OFF = {
    "gke": _GKE,
    "queue": {**_GKE, **_QUEUE},
    "builds": _BUILDS,
    "pipeline": _PIPELINE,
    "monitoring": _MONITORING,
    "slurm": _SLURM,
}
"""Settings that switch a layer on that is off in the tests' environment."""
EVERYTHING = {
    "network:cloudNat": True,
    "storage:stateUsers": ["group:sre@example.com"],
    "storage:serviceAccountUsers": ["group:ml@example.com"],
    "storage:controllerAccountId": "tpu-fleet",
    "storage:controllerAccountUsers": ["group:sre@example.com"],
    "gcp:defaultLabels": {"team": "ml"},
    "gke:artifactBucket": "my-project-artifacts",
    "gke:nodeAccountUsers": ["group:sre@example.com"],
    "gke:workloadAccountId": "cloud-tpu-sa",
    "pipeline:accountUsers": ["group:sre@example.com"],
    "pipeline:runners": ["group:ml@example.com"],
    "pipeline:viewers": ["group:all@example.com"],
    "pipeline:train": "fleet",
    "pipeline:trainZone": "us-east5-b",
    **{key: value for settings in OFF.values() for key, value in settings.items()},
    "gke:tpuPools": [
        *_GKE["gke:tpuPools"],
        {"name": "flex", "acceleratorType": "v6e-16", "zone": "us-east5-b", "flexStart": True},
        {"name": "queued", "acceleratorType": "v6e-16", "zone": "us-east5-b", "queued": True},
        {"name": "spot", "acceleratorType": "v6e-8", "zone": "us-east5-b", "spot": True, "autoscaling": True},
    ],
    "slurm:accounting": True,
    "slurm:homeStorage": "filestore",
    "slurm:accountUsers": ["group:sre@example.com"],
    "slurm:users": ["group:ml@example.com"],
    "monitoring:channels": [
        {"name": "oncall", "email": "oncall@example.com"},
        {"name": "bus", "topic": "tpu-alerts"},
        {"name": "hook", "webhook": "https://hooks.example.com/tpu"},
        {"name": "theirs", "existing": "projects/my-project/notificationChannels/7"},
    ],
    "monitoring:billingAccount": "012345-6789AB-CDEF01",
    "monitoring:budgetPerMonth": 1000,
    "monitoring:runbooks": "https://example.com/runbooks",
}


@cache
def declared(layer: str, preview: bool = False) -> Recording:
    """Return the recording of a layer with everything on; tests only read it."""
    return run(layer, EVERYTHING, preview=preview, up=UP)

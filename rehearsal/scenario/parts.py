"""Settings and steps that several scenarios share."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from rehearsal.scenario import steps as step

DIGEST = f"sha256:{'0' * 64}"
ZONE = "us-east5-b"
NO_CAPACITY = {
    "operation_error": {
        "code": "RESOURCE_EXHAUSTED",
        "message": f'There is no more capacity in the zone "{ZONE}"; you can try in another zone '
        "where Cloud TPU Nodes are offered",
    }
}
# GKE's words for the same.
NO_RESOURCES = {
    "operation_error": {
        "code": "RESOURCE_EXHAUSTED",
        "message": "Google Compute Engine does not have enough resources",
    }
}
CHIPS_PER_ZONE = "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=60"

# The queue of a cluster: an image for jobs, and the repository that it is in.
QUEUE = {"queue:image": f"us-east5-docker.pkg.dev/my-project/images/debian@{DIGEST}"}
IMAGES = step.request(
    "artifactregistry.v1.projects.locations.repositories.create",
    arguments={
        "parent": "projects/$project/locations/us-east5",
        "repositoryId": "images",
        "body": {"format": "DOCKER"},
    },
)
TEAMS = [
    {"name": "vision", "members": ["user:ml-engineer@example.com"]},
    {"name": "speech", "members": ["serviceAccount:ci@build-project.iam.gserviceaccount.com"]},
]
# A secret of programs, as its owner makes it, and the line of a program that prints what it was given.
SECRET = (
    step.request(
        "serviceusage.v1.services.enable",
        arguments={"name": "projects/$project/services/secretmanager.googleapis.com", "body": {}},
    ),
    step.request(
        "secretmanager.v1.projects.secrets.create",
        arguments={
            "parent": "projects/$project",
            "secretId": "hf-token",
            "body": {"replication": {"automatic": {}}},
        },
    ),
    step.request(
        "secretmanager.v1.projects.secrets.addVersion",
        arguments={
            "parent": "projects/$project/secrets/hf-token",
            "body": {"payload": {"data": base64.b64encode(b"of-the-rehearsal").decode()}},
        },
    ),
)
READS_SECRET = 'printf %s "$HF_TOKEN" | sha256sum'
SECRET_SHA256 = hashlib.sha256(b"of-the-rehearsal").hexdigest()
# Pools without slices of the layer `tpu`.
CLUSTER = {
    "tpu:slices": [],
    "tpu:zones": [ZONE],
    "gke:nodeAccountUsers": ["user:platform-engineer@example.com"],
}
PIPELINE = {
    "tpu:slices": [],
    "tpu:zones": [ZONE],
    "pipeline:rawBucketName": "my-project-raw",
    "pipeline:accountUsers": ["user:platform-engineer@example.com"],
    "pipeline:runners": ["user:ml-engineer@example.com"],
    "pipeline:changes": ["output.shards=4", "output.sequence_length=128"],
}
# The four first layers' stacks but the slices', and the bundle.
FOUNDATION = (step.up("storage"), step.publish("cpu"), step.up("network", "data"))
# A Slurm cluster: its machines, its settings but for nodesets and zones, and the steps until it answers.
CONTROLLER, LOGIN = "slurm-dev-controller", "slurm-dev-login-0"
SLURM = {
    "tpu:slices": [],
    "slurm:users": ["user:ml-engineer@example.com"],
    "slurm:accountUsers": ["user:platform-engineer@example.com"],
    "slurm:suspendTimeS": 30,
    "slurm:ssh": SSH + " {node} {command}",
}
SLURM_UP = (*FOUNDATION, step.up("tpu"), step.up("slurm"), step.ready(CONTROLLER), step.ready(LOGIN))
# After its destroy: the disk of its state, and no machine, account, address or secret.
SLURM_LEFT = (
    step.command(
        "tpu doctor dev | grep 'is at Google, and'", prints=r"\A[^\n]*slurm-dev-state is at Google[^\n]*\n?\Z"
    ).by("platform-engineer"),
    step.command(
        "curl --silent --unix-socket $REHEARSAL_CONTROL http://cloud/status", prints=r'"instances": \[\]'
    ),
    step.request(
        "compute.v1.disks.get",
        arguments={"project": "$project", "zone": "$zone", "disk": "slurm-dev-state"},
    ),
)
ALERT_TOPIC = {"monitoring:channels": [{"name": "bus", "topic": "tpu-alerts"}]}
SUBSCRIBE = step.request(
    "pubsub.v1.projects.subscriptions.create",
    arguments={
        "name": "projects/$project/subscriptions/oncall",
        "body": {"topic": "projects/$project/topics/tpu-alerts"},
    },
)


def spot(accelerator: str, run: str = "", name: str = "tpu-dev", **more: Any) -> dict[str, Any]:
    """Return an entry of `tpu:slices`; `more` are further keys, or other values of these."""
    known = {"name": name, "acceleratorType": accelerator, "zones": [ZONE], "spot": True}
    return {**known, **({"run": run} if run else {}), **more}


def pool(name: str, accelerator: str, **more: Any) -> dict[str, Any]:
    """Return an entry of `gke:tpuPools`, of spot nodes unless `more` says otherwise."""
    provisioning = {} if "flexStart" in more else {"spot": True}
    return {"name": name, "acceleratorType": accelerator, "zone": ZONE, **provisioning, **more}


def train_on_shards(steps: int, every: int) -> str:
    """Return the command of a run's training by the smallest model."""
    return f"{train('@RUN@', steps, every)} --set data.path=@DATA@"


def train(name: str, steps: int, every: int | None = None) -> str:
    """Return the command of a run of the smallest model; `every`: steps from one checkpoint to the next."""
    saves = f" --set checkpoint.every_steps={every}" if every else ""
    return f"train tiny.toml --name {name} --set train.steps={steps}{saves}"

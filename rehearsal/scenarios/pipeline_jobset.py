"""The pipeline hands its shards to a JobSet in a team's queue.

Shards train in the queue of a cluster: the workflow submits a JobSet to a real API server as a member of
the team, Kueue admits it, its pod trains on the shards, and the workflow sees it end.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=60,
    control_planes=True,
    runtimes=("spark", "functions"),
    prepare=("tpu pipeline publish dev --dry-run",),
    settings={
        "tpu:slices": [],
        "tpu:zones": ["us-east5-b"],
        "gke:nodeAccountUsers": ["user:platform-engineer@example.com"],
        "gke:namespaces": ["vision"],
        "gke:tpuPools": [{"name": "train", "acceleratorType": "v6e-4", "zone": "us-east5-b", "spot": True}],
        "queue:kueueImage": (
            "registry.k8s.io/kueue/kueue:v0.18.4@sha256:0000000000000000000000000000000000000000000000000000000000000000"
        ),
        "queue:image": (
            "us-docker.pkg.dev/my-project/images/debian@sha256:0000000000000000000000000000000000000000000000000000000000000000"
        ),
        "queue:install": "bundle",
        "queue:teams": [
            {
                "name": "vision",
                "members": [
                    "user:ml-engineer@example.com",
                    "serviceAccount:tpu-pipeline-run@my-project.iam.gserviceaccount.com",
                ],
            }
        ],
        "pipeline:rawBucketName": "my-project-raw",
        "pipeline:accountUsers": ["user:platform-engineer@example.com"],
        "pipeline:runners": ["user:ml-engineer@example.com"],
        "pipeline:train": "jobset",
        "pipeline:trainTeam": "vision",
        "pipeline:trainSlice": "v6e-4",
        "pipeline:trainRun": (
            "train tiny.toml --name @RUN@ --set train.steps=12 --set checkpoint.every_steps=6 "
            "--set data.path=@DATA@"
        ),
        "pipeline:changes": ["output.shards=4", "output.sequence_length=128"],
        "pipeline:maxRunCostUsd": 1000,
        "pipeline:pollS": 60,
    },
    steps=(
        step.up("storage"),
        step.publish("cpu"),
        step.up("network"),
        step.up("data"),
        step.up("gke"),
        step.up("pipeline"),
        step.command("tpu pipeline publish dev", prints="pipeline:code is set"),
        step.up("pipeline"),
        step.up("queue"),  # its team has the pipeline's account
        step.submit("corpus/", documents=300, marker=False),
        step.command(
            "tpu pipeline run dev gs://my-project-raw/corpus/ --yes",
            prints=r"(?s)submitted as r\d+.*: trained.*JobSet tokens-r\d+ of vision",
            timeout_s=400,
        ).by("ml-engineer"),
        step.made("corpus/", batches=("SUCCEEDED",), slices=0),
        step.command("tpu job list dev vision", prints=r"tokens-r\d+ .*completed").by("ml-engineer"),
    ),
)

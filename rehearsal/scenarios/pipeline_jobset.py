"""The pipeline hands its shards to a JobSet in a team's queue.

Shards train in the queue of a cluster: the function submits a JobSet to a real API server as a member of
the team, Kueue admits it, its pod trains on the shards, and the function sees it end.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import CLUSTER, FOUNDATION, IMAGES, PIPELINE, QUEUE, pool, train_on_shards
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=60,
    control_planes=True,
    runtimes=("spark", "functions"),
    prepare=("tpu pipeline publish dev --dry-run",),
    settings={
        **CLUSTER,
        **PIPELINE,
        **QUEUE,
        "gke:namespaces": ["vision"],
        "gke:tpuPools": [pool("train", "v6e-4")],
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
        "pipeline:train": "jobset",
        "pipeline:trainTeam": "vision",
        "pipeline:trainSlice": "v6e-4",
        "pipeline:trainRun": train_on_shards(12, 6),
        "pipeline:maxRunCostUsd": 1000,
    },
    steps=(
        *FOUNDATION,
        IMAGES,
        step.up("gke"),
        step.up("pipeline"),
        step.command("tpu pipeline publish dev", prints="pipeline:code is set"),
        step.up("pipeline"),
        step.up("queue"),  # its team has the pipeline's account
        step.submit("corpus/", documents=300, marker=False),
        step.command(
            "tpu pipeline run dev gs://my-project-raw/corpus/ --yes",
            prints=r"(?s)submitted as r\d+.*: trained.*JobSet tokens-r\d+ of vision",
        ).by("ml-engineer"),
        step.made("corpus/", batches=("SUCCEEDED",), slices=0),
        step.command("tpu job list dev vision", prints=r"tokens-r\d+ .*completed").by("ml-engineer"),
    ),
)

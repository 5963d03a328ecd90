"""Cloud Build applies saved plans, or plans itself, and takes the layers down again.

The layers by Cloud Build: the state in a bucket, its secrets by a key, an account of the builds, plans that
are saved and applied, and a destroy that is refused while something protected or a job is there.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import DIGEST, IMAGES, QUEUE, TEAMS, pool
from rehearsal.scenario.scenario import Scenario

_PLAN = (
    "env -u PULUMI_CONFIG_PASSPHRASE PULUMI_BACKEND_URL=gs://my-project-checkpoints-state "
    "tpu plan dev network data gke queue --save $HOME/plans"
)

SCENARIO = Scenario(
    clock=60,
    control_planes=True,
    settings={
        "tpu:slices": [],
        "tpu:zones": ["us-east5-b"],
        "storage:stateBucketName": "my-project-checkpoints-state",
        "storage:stateKeyRing": "tpu-state",
        "storage:stateUsers": ["user:platform-engineer@example.com"],
        "gke:deletionProtection": True,
        "gke:tpuPools": [pool("train", "v6e-4")],
        "gke:namespaces": ["vision"],
        **QUEUE,
        "queue:install": "bundle",
        "queue:teams": TEAMS[:1],
        "builds:layers": ["network", "data", "gke", "queue"],
        "builds:users": ["user:platform-engineer@example.com"],
        "builds:image": f"docker.io/library/python@{DIGEST}",
    },
    steps=(
        step.up("storage"),
        IMAGES,
        step.publish("cpu"),
        step.up("builds"),
        step.command("""
        set -e
        for layer in storage builds; do pulumi -C infra/layers/$layer stack export -s dev --file $HOME/$layer.json; done
        export PULUMI_BACKEND_URL=gs://my-project-checkpoints-state
        key=gcpkms://projects/my-project/locations/us-east5/keyRings/tpu-state/cryptoKeys/pulumi-secrets
        for layer in storage builds; do
          pulumi -C infra/layers/$layer stack init dev --secrets-provider $key
          pulumi -C infra/layers/$layer stack import -s dev --file $HOME/$layer.json
          pulumi -C infra/layers/$layer stack change-secrets-provider -s dev $key
        done
        unset PULUMI_CONFIG_PASSPHRASE
        for layer in storage builds; do pulumi -C infra/layers/$layer preview -s dev --expect-no-changes; done
        """).by("platform-engineer"),
        # Who isn't a user of the builds can't even look whether another one runs.
        step.command("tpu builds submit dev provision --yes", prints="cloudbuild.builds.list", fails=True),
        step.command(_PLAN).by("platform-engineer"),
        step.command(
            "tpu builds submit dev provision --plan $HOME/plans",
            prints="(?s)apply-data: SUCCESS.*apply-network: SUCCESS.*apply-gke: SUCCESS.*apply-queue: SUCCESS",
        ).by("platform-engineer"),
        step.command(_PLAN, prints="(?s)(no changes.*){4}").by("platform-engineer"),
        step.command(
            'tpu job submit dev vision --pool train --name held --detach -- bash -c "sleep 3600"',
            prints="submitted",
        ),
        step.command(
            "tpu builds submit dev destroy --yes",
            prints="(?s)check: FAILURE.*vision/held.*deletion protection of tpu",
            fails=True,
        ).by("platform-engineer"),
        step.settings({"gke:deletionProtection": False}),
        # That isn't in the plan, which was made before.
        step.command(
            "tpu builds submit dev provision --plan $HOME/plans",
            prints="(?s)apply-network: SUCCESS.*apply-gke: FAILURE.*fix: .*tpu plan dev gke --save",
            fails=True,
        ).by("platform-engineer"),
        step.command("tpu builds submit dev provision --yes", prints="apply-queue: SUCCESS").by(
            "platform-engineer"
        ),
        step.command(
            "tpu builds submit dev destroy --yes", prints="(?s)check: FAILURE.*vision/held", fails=True
        ).by("platform-engineer"),
        step.command("tpu job cancel dev vision held --yes", prints="held"),
        step.command(
            "tpu builds submit dev destroy --yes",
            prints=(
                "(?s)destroy-queue: SUCCESS.*destroy-gke: SUCCESS.*destroy-network: "
                "SUCCESS.*destroy-data: SUCCESS"
            ),
        ).by("platform-engineer"),
        step.command("""
        set -e
        unset PULUMI_CONFIG_PASSPHRASE
        export PULUMI_BACKEND_URL=gs://my-project-checkpoints-state
        for layer in storage builds; do pulumi -C infra/layers/$layer preview -s dev --expect-no-changes; done
        """).by("platform-engineer"),
    ),
)

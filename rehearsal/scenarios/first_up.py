"""In a new project one `tpu up` makes every layer, under the documented roles, and the next one changes nothing.

Nothing was ever enabled there, no service agent exists, and no role, account, API or metric holds before
the time that Google names. The owner does what docs/guides/first-up.md lists; a platform engineer does the rest.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import ALERT_TOPIC, DIGEST, TEAMS, pool, spot
from rehearsal.scenario.scenario import Scenario

ENGINEER = "user:platform-engineer@example.com"
LAYERS = ("storage", "network", "data", "gke", "queue", "builds", "pipeline", "monitoring", "tpu")
SCENARIO = Scenario(
    clock=10,  # a grant takes 12 s, an API 18, a metric a minute: longer than any pause of a client
    control_planes=True,
    runtimes=("functions",),
    settings={
        "storage:serviceAccountUsers": [ENGINEER, "user:ml-engineer@example.com"],
        "storage:controllerAccountId": "tpu-fleet",
        "storage:stateBucketName": "my-project-checkpoints-state",
        "storage:stateKeyRing": "tpu-state",
        "tpu:slices": [spot("v6e-1")],
        "gke:nodeAccountUsers": [ENGINEER],
        "gke:tpuPools": [pool("train", "v6e-4")],
        "gke:namespaces": ["vision"],
        "queue:teams": TEAMS[:1],
        "builds:layers": ["network", "data"],
        "builds:users": [ENGINEER],
        "builds:image": f"docker.io/library/python@{DIGEST}",
        "pipeline:rawBucketName": "my-project-raw",
        "pipeline:accountUsers": [ENGINEER],
        "pipeline:train": "fleet",
        "pipeline:trainZone": "us-east5-b",
        **ALERT_TOPIC,
        "monitoring:billingAccount": "01D4EE-079462-DFD6EC",
        "monitoring:budgetPerMonth": 1000,
    },
    steps=(
        step.command("tpu doctor dev", prints="off: .*container.googleapis.com", fails=True).by(
            "platform-engineer"
        ),
        step.command("tpu up dev --yes", prints="(?s)== storage ==.*== tpu ==.*up; next: tpu status dev").by(
            "platform-engineer"
        ),
        step.unchanged(*LAYERS),
        step.ready("tpu-dev"),
        step.command("tpu doctor dev", prints="nothing is missing"),
    ),
)

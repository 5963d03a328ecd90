"""A bucket with real folders under a customer's key, and hosts under maintenance.

The bucket's two settings that no other scenario has, a hierarchical namespace and a customer's key, and
Google's maintenance of the hosts in the middle of a run: they come back with their boot disks, and the
run resumes.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import spot, train
from rehearsal.scenario.scenario import Scenario

KEY = "projects/$project/locations/$region/keyRings/training/cryptoKeys/checkpoints"
AGENT = "serviceAccount:service-123456789012@gs-project-accounts.iam.gserviceaccount.com"
GRANT = {"role": "roles/cloudkms.cryptoKeyEncrypterDecrypter", "members": [AGENT]}
SCENARIO = Scenario(
    clock=20,
    settings={
        "storage:versioning": False,
        "storage:hierarchicalNamespace": True,
        "storage:kmsKey": KEY.replace("$project", "my-project").replace("$region", "us-east5"),
        "tpu:slices": [spot("v6e-8", train("reference", 600, 100), spot=False)],
    },
    steps=(
        # The key is another team's: it is there before, and is granted as `gcloud storage service-agent`
        # does.
        step.request(
            "serviceusage.v1.services.enable",
            arguments={"name": "projects/$project/services/cloudkms.googleapis.com", "body": {}},
        ),
        step.request(
            "cloudkms.v1.projects.locations.keyRings.create",
            arguments={"parent": "projects/$project/locations/$region", "keyRingId": "training", "body": {}},
        ),
        step.request(
            "cloudkms.v1.projects.locations.keyRings.cryptoKeys.create",
            arguments={
                "parent": "projects/$project/locations/$region/keyRings/training",
                "cryptoKeyId": "checkpoints",
                "body": {"purpose": "ENCRYPT_DECRYPT"},
            },
        ),
        step.up("storage", refused="Permission denied on Cloud KMS key"),
        step.request(
            "cloudkms.v1.projects.locations.keyRings.cryptoKeys.setIamPolicy",
            arguments={
                "resource": KEY,
                "body": {"policy": {"bindings": [GRANT]}},
            },
        ),
        # Meanwhile the grant reaches Cloud KMS, as at Google not at once.
        step.preview(),
        step.up("storage"),
        step.publish("cpu"),
        step.up("network", "data"),
        step.up("tpu"),
        step.ready("tpu-dev"),
        step.done("reference"),
        step.settings({"tpu:slices": [spot("v6e-8", train("interrupted", 600, 100), spot=False)]}),
        step.up("tpu"),
        step.ssh("tpu-dev", "sudo systemctl restart google-startup-scripts"),
        step.ready("tpu-dev"),
        step.kill("tpu-dev", "maintenance", run="interrupted", between=(150, 400)),
        step.ready("tpu-dev"),
        step.done("interrupted"),
        step.resumed("interrupted", 100),
        step.same("reference", "interrupted"),
        step.remember("runs/reference/", "bundles/"),
        step.destroy("tpu"),
        step.survived(),
    ),
)

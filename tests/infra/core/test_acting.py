"""Refusals to act as a service account, as services word them, and the setting that each fix names."""

import pytest

from infra.core import acting
from infra.engine.registry import named
from tests.infra.declared import EVERYTHING
from tests.infra.recording import BASE, parsed

ROLE = "roles/iam.serviceAccountUser on the "
_STORAGE = f"{ROLE}hosts' account: user:YOU in storage:serviceAccountUsers, then tpu up dev storage"
_GKE = f"{ROLE}GKE nodes' account: user:YOU in gke:nodeAccountUsers, then tpu up dev gke"
_SLURM = f"{ROLE}Slurm machines' accounts: user:YOU in slurm:accountUsers, then tpu up dev slurm"
_PIPELINE = f"{ROLE}pipeline's accounts: user:YOU in pipeline:accountUsers, then tpu up dev pipeline"


UNNAMED = "googleapi: Error 403: Permission 'iam.serviceaccounts.actAs' denied on service account"


def of_iam(account: str) -> str:
    return (
        "Error creating Cluster: googleapi: Error 403: Permission 'iam.serviceAccounts.actAs' denied on "
        f"resource '//iam.googleapis.com/projects/p/serviceAccounts/{account}"
        "@my-project.iam.gserviceaccount.com' (or it may not exist)., forbidden"
    )


@pytest.mark.parametrize(("layer", "message", "grant"), [
    ("gke", of_iam("tpu-gke-nodes"), _GKE),
    ("slurm", of_iam("slurm-dev-login"), _SLURM),
    ("slurm", of_iam("tpu-training"), _STORAGE),
    ("pipeline", of_iam("tpu-pipeline-run"), _PIPELINE),
    ("pipeline", "User ada@example.com is not authorized to act as service account "
                 "'tpu-pipeline-trigger@my-project.iam.gserviceaccount.com'.", _PIPELINE),
    ("tpu", of_iam("tpu-training"), _STORAGE),
    ("tpu", UNNAMED, _STORAGE),
    ("gke", UNNAMED, _GKE),
    ("tpu", of_iam("somebody-elses"), ""),
    ("tpu", "Permission 'tpu.nodes.create' denied", ""),
])  # fmt: skip
def test_a_refusal_to_act_names_the_setting_of_the_layer_whose_account_it_is(
    layer: str, message: str, grant: str
) -> None:
    assert acting.refused(message, named(layer), parsed({**BASE, **EVERYTHING})) == grant

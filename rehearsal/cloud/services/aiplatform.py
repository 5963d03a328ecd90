"""Vertex AI: custom jobs and TensorBoards. Nothing runs a job: it is PENDING until it is cancelled.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.customJobs
"""

from __future__ import annotations

from rehearsal.cloud.collections import KEEP, Change, Collection, Entry, Reference, Verb
from rehearsal.cloud.collections.checks import acts_as, every, not_emulated, wrong_state
from rehearsal.cloud.service import bad_request

_BOARDS, _ENDED = "aiplatform.projects.locations.tensorboards", "JOB_STATE_CANCELLED"


def _pools(change: Change) -> None:
    for number, pool in enumerate(change.body["jobSpec"]["workerPoolSpecs"]):
        place = f"job_spec.worker_pool_specs[{number}]"
        if not pool.get("machineSpec", {}).get("machineType"):
            raise bad_request(f"{place}.machine_spec.machine_type is required.")
        if len({"containerSpec", "pythonPackageSpec"} & pool.keys()) != 1:
            raise bad_request(f"{place} must have exactly one of container_spec and python_package_spec.")
        pool.setdefault("replicaCount", "1")
    spec = change.body["jobSpec"]
    if spec.get("tensorboard") and not (spec.get("serviceAccount") and spec.get("baseOutputDirectory")):
        raise bad_request(
            "job_spec.tensorboard needs job_spec.service_account and job_spec.base_output_directory."
        )


def _cancel(change: Change) -> None:
    wrong_state(change, "state", ("JOB_STATE_QUEUED", "JOB_STATE_PENDING", "JOB_STATE_RUNNING"))
    change.body |= {"state": _ENDED, "endTime": change.world.clock.rfc3339()}
    change.body["error"] = {"code": 1, "message": "CANCELED"}


ENTRY = Entry(
    "aiplatform",
    ("v1",),
    (
        Collection(
            "aiplatform.projects.locations.customJobs",
            ready={"state": "JOB_STATE_PENDING"},
            references=(
                acts_as("jobSpec.serviceAccount"),
                Reference("jobSpec.tensorboard", (_BOARDS,), on_delete=KEEP),
                Reference("jobSpec.network", ("compute.networks",), on_delete=KEEP),
            ),
            check=every(
                not_emulated("encryptionSpec", "jobSpec.experiment", "jobSpec.persistentResourceId"), _pools
            ),
            verbs={"cancel": Verb(_cancel)},
            deleting=lambda change: wrong_state(change, "state", (_ENDED,)),
        ),
        Collection(
            _BOARDS,
            check=not_emulated("encryptionSpec", "isDefault"),
        ),
    ),
    package="google.cloud.aiplatform.v1",
    metadata="GenericOperationMetadata",
    roles={
        "roles/aiplatform.admin": ("aiplatform.*",),
        "roles/aiplatform.user": ("!*.setIamPolicy", "aiplatform.*"),
        "roles/aiplatform.viewer": ("aiplatform.*.get", "aiplatform.*.list"),
    },
)

"""Dataproc Serverless: batches. Nothing runs them: a batch is PENDING until its operation is cancelled.

https://cloud.google.com/dataproc-serverless/docs/reference/rest/v1/projects.locations.batches
"""

from __future__ import annotations

import math

from rehearsal.cloud.collections import Change, Collection, Entry, Reference
from rehearsal.cloud.collections.checks import acts_as, every, not_emulated, one_of, wrong_state
from rehearsal.cloud.service import ApiError, bad_request

_RUN = "environmentConfig.executionConfig"


def _ended(change: Change, error: ApiError) -> None:
    """A batch whose operation was cancelled, or failed by a fault, is still there."""
    state = "CANCELLED" if error.status == "CANCELLED" else "FAILED"
    ended = {"state": state, "stateMessage": error.message, "stateTime": change.world.clock.rfc3339()}
    change.world.directory[change.name] |= ended


def _reaches_google(change: Change) -> None:
    """No batch without it: https://cloud.google.com/dataproc-serverless/docs/concepts/network."""
    subnet = change.body.get("environmentConfig", {}).get("executionConfig", {}).get("subnetworkUri", "")
    place = f"projects/{change.world.project}/regions/{change.name.split('/')[3]}/subnetworks"
    name = subnet.rpartition("/")[2]
    if subnet and not change.world.directory[f"{place}/{name}"].get("privateIpGoogleAccess"):
        raise bad_request(
            f"Subnetwork '{name}' does not support Private Google Access which is required for Dataproc "
            "clusters when 'internal_ip_only' is set to 'true'. Enable Private Google Access on it."
        )


ENTRY = Entry(
    "dataproc",
    ("v1",),
    (
        Collection(
            "dataproc.projects.locations.batches",
            pattern="[a-z0-9][-a-z0-9]{2,61}[a-z0-9]",
            seconds=math.inf,
            defaults={"runtimeConfig": {"version": "2.3"}},
            creating={"state": "PENDING"},
            ready={"state": "PENDING"},
            references=(
                acts_as(f"{_RUN}.serviceAccount"),
                Reference(
                    f"{_RUN}.networkUri",
                    ("compute.networks",),
                    short="projects/{project}/global/networks/{id}",
                ),
                Reference(
                    f"{_RUN}.subnetworkUri",
                    ("compute.subnetworks",),
                    short="projects/{project}/regions/{region}/subnetworks/{id}",
                ),
            ),
            check=every(
                one_of("pysparkBatch", "sparkBatch", "sparkRBatch", "sparkSqlBatch", "pysparkNotebookBatch"),
                not_emulated(f"{_RUN}.kmsKey", "environmentConfig.peripheralsConfig"),
                _reaches_google,
            ),
            failed=_ended,
            deleting=lambda change: wrong_state(change, "state", ("CANCELLED", "SUCCEEDED", "FAILED")),
        ),
    ),
    package="google.cloud.dataproc.v1",
    metadata="BatchOperationMetadata",
    roles={
        "roles/dataproc.admin": ("dataproc.*",),
        "roles/dataproc.editor": ("!*.setIamPolicy", "dataproc.*"),
        "roles/dataproc.viewer": ("dataproc.*.get", "dataproc.*.list"),
        "roles/dataproc.serverlessEditor": ("dataproc.batches.*", "dataproc.operations.*"),
    },
)

"""Serverless Spark: batches, which rehearsal/cloud/services/dataproc/runner.py runs.

https://cloud.google.com/dataproc-serverless/docs/reference/rest/v1/projects.locations.batches
"""

from __future__ import annotations

import uuid

from rehearsal.cloud.collections import Change, Collection, Entry
from rehearsal.cloud.collections.checks import (
    acts_as,
    default_account,
    every,
    network,
    not_emulated,
    one_of,
    subnetwork,
    wrong_state,
)
from rehearsal.cloud.collections.shape import values
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.services.dataproc import rules as spark_rules
from rehearsal.cloud.services.dataproc.runner import move

_RUN = "environmentConfig.executionConfig"
_START_S = 45.0  # of virtual time, until a batch runs
_DEFAULT_TTL_S, _TTL_S = 4 * 3600, (600, 14 * 86400)
_ENDINGS = {
    "archiveUris": (".jar", ".tar", ".tar.gz", ".tgz", ".zip"), "pythonFileUris": (".py", ".egg", ".zip"),
    "jarFileUris": (".jar",),
}  # fmt: skip


def _complete(change: Change) -> None:
    """Set the service's defaults; ApiError 400 with all problems of the batch."""
    body = change.body
    if body.get("runtimeConfig", {}).get("version", "").startswith("3."):
        raise NotEmulatedError("A batch of a runtime 3")
    run = body.setdefault("environmentConfig", {}).setdefault("executionConfig", {})
    if not run.get("serviceAccount"):
        run["serviceAccount"] = default_account(change)
    run.setdefault("ttl", f"{_DEFAULT_TTL_S}s")
    runtime = body["runtimeConfig"]
    today = change.world.clock.rfc3339()[:10]
    problems = spark_rules.problems(runtime["version"], runtime.get("properties", {}), today)
    problems += _of_files(body.get("pysparkBatch", {}))
    low, high = _TTL_S
    if not low <= float(run["ttl"].removesuffix("s")) <= high:
        problems.append(f"ttl must be from {low}s to {high}s, not {run['ttl']}")
    if run.get("stagingBucket", "").startswith("gs://"):
        problems.append("stagingBucket must be a bucket's name, without gs://")
    if problems:
        raise bad_request(f"Batch is invalid: {'; '.join(problems)}.")
    body |= {"uuid": str(uuid.uuid4()), "creator": change.call.principal, "state": "PENDING"}
    body["stateTime"] = change.world.clock.rfc3339()
    change.waits.append(lambda: _run(change))


def _of_files(given: JsonObject) -> list[str]:
    problems = []
    if given and not given.get("mainPythonFileUri", "").endswith(".py"):
        problems.append("mainPythonFileUri must be a .py file")
    for field, endings in _ENDINGS.items():
        for uri in given.get(field, ()):
            if not uri.partition("#")[0].endswith(endings):
                problems.append(f"{field}: {uri} must end in {', '.join(endings)}")
    return problems


def _reaches_google(change: Change) -> None:
    """ApiError 400 for a subnet without Private Google Access.

    https://cloud.google.com/dataproc-serverless/docs/concepts/network
    """
    field = f"{_RUN}.subnetworkUri"
    for subnet in values(change.body, field):
        name = change.resources.references.target(subnetwork(field), change.name, subnet)
        if change.world.directory[name].get("privateIpGoogleAccess"):
            continue
        short = name.rpartition("/")[2]
        raise bad_request(
            f"Subnetwork '{short}' does not support Private Google Access which is required for Dataproc "
            "clusters when 'internal_ip_only' is set to 'true'. Enable Private Google Access on it."
        )


async def _run(change: Change) -> None:
    """Run it; ApiError unless it succeeds."""
    batch = change.world.directory[change.name]
    if change.runtime.run_batch is None:
        raise ApiError(400, "FAILED_PRECONDITION", "This cloud has nothing to run batches with.")
    await change.runtime.run_batch(batch)
    move(change.world, batch, "SUCCEEDED")
    change.private["batch"] = batch


def _ended(change: Change) -> None:
    change.world.directory[change.name] = change.private.pop("batch")


def _failed(change: Change, error: ApiError) -> None:
    """Keep a batch that failed or was cancelled, in that state."""
    state = "CANCELLED" if error.status == "CANCELLED" else "FAILED"
    move(change.world, change.world.directory[change.name], state, error.message)


ENTRY = Entry(
    "dataproc",
    ("v1",),
    (
        Collection(
            "dataproc.projects.locations.batches",
            pattern="[a-z0-9][-a-z0-9]{2,61}[a-z0-9]",
            seconds=_START_S,
            defaults={"runtimeConfig": {"version": spark_rules.DEFAULT_VERSION}},
            references=(
                acts_as(f"{_RUN}.serviceAccount"),
                network(f"{_RUN}.networkUri"),
                subnetwork(f"{_RUN}.subnetworkUri"),
            ),
            check=every(
                one_of("pysparkBatch", "sparkBatch", "sparkRBatch", "sparkSqlBatch", "pysparkNotebookBatch"),
                not_emulated(f"{_RUN}.kmsKey", "environmentConfig.peripheralsConfig"),
                _reaches_google,
                _complete,
            ),
            created=_ended,
            failed=_failed,
            deleting=lambda change: wrong_state(change, "state", ("CANCELLED", "SUCCEEDED", "FAILED")),
        ),
    ),
    package="google.cloud.dataproc.v1",
    metadata="BatchOperationMetadata",
)

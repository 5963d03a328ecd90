"""Vertex AI: custom jobs, PENDING until they are cancelled as nothing runs them; TensorBoards with scalars.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.customJobs
https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.tensorboards.experiments.runs/write
"""

from __future__ import annotations

from rehearsal.cloud.collections import KEEP, Change, Collection, Entry, Reference, Verb
from rehearsal.cloud.collections.checks import acts_as, every, not_emulated, wrong_state
from rehearsal.cloud.collections.words import not_found
from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError, bad_request

_BOARDS, _ENDED = "aiplatform.projects.locations.tensorboards", "JOB_STATE_CANCELLED"
_RUNS = f"{_BOARDS}.experiments.runs"
_ID = "[a-z0-9][a-z0-9-]{0,127}"
_MOST_POINTS, _SHOWN = 5000, 1000  # of a request to write; of an answer, unless it is asked for others


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


def _one_of_its_name(change: Change) -> None:
    """Display names are unique among the runs of an experiment, and the time series of a run."""
    siblings = change.resources.below(change.name.rpartition("/")[0])
    if any(
        name != change.name and sibling["displayName"] == change.body["displayName"]
        for name, sibling in siblings
    ):
        raise bad_request(f"displayName {change.body['displayName']} is another's below the same parent.")


def _write(change: Change) -> JsonObject:
    """Points of several time series of a run; a step that is there is overwritten. All or none."""
    sent = change.sent.get("timeSeriesData") or []
    if not sent or sum(len(series.get("values", ())) for series in sent) > _MOST_POINTS:
        raise bad_request(f"timeSeriesData must have 1 to {_MOST_POINTS} data points.")
    points: dict[str, dict[int, JsonObject]] = {}
    for written in sent:
        name = f"{change.name}/timeSeries/{written.get('tensorboardTimeSeriesId')}"
        series = change.world.find(name)
        if series is None:
            raise not_found(change.resources.shape(f"{_RUNS}.timeSeries"), name)
        scalars = all("scalar" in value for value in written["values"])
        if not scalars or written.get("valueType") != series["valueType"]:
            raise bad_request(f"{name} has values of type {series['valueType']}.")
        points.setdefault(name, {}).update({int(value.get("step", 0)): value for value in written["values"]})
    for name, by_step in points.items():
        change.world.private.setdefault(name, {}).setdefault("points", {}).update(by_step)
    return {}


def _newest(change: Change) -> None:
    if points := change.private.get("points"):
        times = [value["wallTime"] for value in points.values() if "wallTime" in value]
        change.body["metadata"] = {
            "maxStep": str(max(points)), **({"maxWallTime": max(times)} if times else {})
        }  # fmt: skip


def _read(change: Change) -> JsonObject:
    points = change.private.get("points", {})
    most = int(change.call.query.get("maxDataPoints") or _SHOWN)
    if change.call.query.get("filter") or 0 <= most < len(points):
        raise NotEmulatedError("reading a sample of a time series, or a part by a filter")
    return {
        "timeSeriesData": {
            "tensorboardTimeSeriesId": change.id,
            "valueType": change.old["valueType"],
            "values": [points[step] for step in sorted(points)],
        }
    }


def _scalars_alone(change: Change) -> None:
    if change.body.get("valueType") != "SCALAR":
        raise NotEmulatedError("time series of tensors and blobs")


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
        Collection(f"{_BOARDS}.experiments", permission="aiplatform.tensorboardExperiments", pattern=_ID),
        Collection(
            _RUNS,
            permission="aiplatform.tensorboardRuns",
            pattern=_ID,
            check=_one_of_its_name,
            verbs={"write": Verb(_write)},
        ),
        Collection(
            f"{_RUNS}.timeSeries",
            permission="aiplatform.tensorboardTimeSeries",
            pattern=_ID,
            check=every(_scalars_alone, _one_of_its_name),
            shown=_newest,
            verbs={"read": Verb(_read)},
        ),
    ),
    package="google.cloud.aiplatform.v1",
    metadata="GenericOperationMetadata",
)

"""Status of a job, read from its JobSet, workload and pods."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import requests

from infra.errors import InfraError
from infra.google.client import Client, RequestError
from infra.google.failures import Failure, Kind
from infra.google.kubernetes import Cluster
from infra.layers.queue.jobs.client import COMPLETED, FAILED, QUEUED, RUNNING, STARTING, Jobs, Status
from infra.layers.queue.jobs.jobset import Job
from infra.layers.queue.kueue import Team

TEAM = Team("vision", "vision-space")
ADMITTED_AT, ENDED_AT = "2026-11-24T10:00:00Z", "2026-11-24T10:30:30Z"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/vision-space/jobsets"
QUEUE = "namespaces/vision-space/localqueues/default"
PENDING = f"/apis/visibility.kueue.x-k8s.io/v1beta2/{QUEUE}/pendingworkloads"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/vision-space/workloads"
PODS = "/api/v1/namespaces/vision-space/pods"


class Api(Cluster):
    """A cluster that has these objects, by the path of their collection or of themselves."""

    def __init__(self, objects: Mapping[str, Any], failure: Kind | None = None):
        super().__init__(Client("p"), "gke-1.us-east5.gke.goog")
        self._objects, self._failure = objects, failure
        self.requests: list[tuple[str, Mapping[str, Any]]] = []

    def items(self, path: str, query: Mapping[str, Any] = {}) -> Iterator[dict[str, Any]]:
        self.requests.append((path, query))
        yield from self._objects.get(path, ())

    def get(self, path: str) -> dict[str, Any] | None:
        result: dict[str, Any] | None = self._objects.get(path)
        return result

    def create(self, path: str, item: Mapping[str, Any], query: Mapping[str, Any] = {}) -> dict[str, Any]:
        self.requests.append((path, query))
        self._fail()
        return dict(item)

    def delete(self, path: str) -> bool:
        return path in self._objects

    def text(self, path: str, query: Mapping[str, Any] = {}) -> str:
        self.requests.append((path, query))
        self._fail()
        return str(self._objects[path])

    def _fail(self) -> None:
        if self._failure:
            raise RequestError(Failure(self._failure, "refused"))


def jobset(name: str = "train", created: str = "2026-11-24T09:00:00Z", **status: Any) -> dict[str, Any]:
    part = {"name": "slice", "replicas": 2, "template": {"spec": {"parallelism": 2}}}
    uploader = {"name": "uploader", "replicas": 1, "template": {"spec": {}}}
    labels = {"kueue.x-k8s.io/priority-class": "high"}
    meta = {"name": name, "uid": f"uid-{name}", "creationTimestamp": created, "labels": labels}
    return {"metadata": meta, "spec": {"replicatedJobs": [part, uploader]}, "status": status}


def workload(name: str = "train", **conditions: tuple[str, str]) -> dict[str, Any]:
    owner = {"uid": f"uid-{name}", "name": name}
    result = [
        {"type": kind, "status": status, "message": message, "lastTransitionTime": ADMITTED_AT}
        for kind, (status, message) in conditions.items()
    ]
    return {"metadata": {"name": f"w-{name}", "ownerReferences": [owner]}, "status": {"conditions": result}}


def pod(job: int, host: int, phase: str = "Running", made: str = "1", **status: Any) -> dict[str, Any]:
    notes = {
        "jobset.sigs.k8s.io/job-index": str(job),
        "batch.kubernetes.io/job-completion-index": str(host),
    }
    return {
        "metadata": {
            "name": f"train-slice-{job}-{host}-{made}", "annotations": notes,
            "labels": {"jobset.sigs.k8s.io/jobset-name": "train"},
            "creationTimestamp": f"2026-11-24T09:00:0{made}Z",
        },
        "spec": {"containers": [{"env": [{"name": "JOB_HOSTS", "value": "2"}]}]},
        "status": {"phase": phase, **status},
    }  # fmt: skip


def jobs(failure: Kind | None = None, **objects: Any) -> tuple[Jobs, Api]:
    paths = {"jobsets": JOBSETS, "workloads": WORKLOADS, "pods": PODS, "pending": PENDING}
    api = Api({paths.get(key, key): value for key, value in objects.items()}, failure)
    return Jobs(api, TEAM, "dev"), api


def status(item: Any, made: Any = None, pods: Any = (), **more: Any) -> Status:
    own, _ = jobs(jobsets=[item], workloads=[made] if made else [], pods=list(pods), **more)
    result = own.status("train")
    assert result is not None
    return result


def unused(flavor: str, chips: int) -> str:
    return f"insufficient unused quota for google.com/tpu in flavor {flavor}, {chips} more needed"


TOO_LARGE = (
    "insufficient quota for google.com/tpu in flavor {}, previously considered podsets requests (0) + "
    "current podset request (8) > maximum capacity ({})"
)
_CPU, _TAS = 'Flavor "cpu" does not support TopologyAwareScheduling, ', 'topology "tpu" '


@pytest.mark.parametrize(("message", "why"), [
    (f"couldn't assign flavors to pod set slice: {_CPU}{unused('b', 1)}", "waits for 1 more chip of b"),
    (f"couldn't assign flavors to pod set slice: {unused('a', 8)}. Pending the preemption of 1 workload(s)",
     "waits for 8 more chips of a; another job makes room for it"),
    (f'couldn\'t assign flavors to pod set slice: Flavor "b" supports only TopologyAwareScheduling, '
     f"{TOO_LARGE.format('cpu', 0)}, {unused('a', 4)}", "waits for 4 more chips of a"),
    (f"couldn't assign flavors to pod set slice: {_CPU}{_TAS}allows to fit only 1 out of 2 pod(s)",
     "waits for a whole slice"),
    (f"couldn't assign flavors to pod set slice: {_TAS}doesn't allow to fit any of 4 pod(s). Total nodes: 8",
     "waits for a whole slice"),
    (f"couldn't assign flavors to pod set slice: {TOO_LARGE.format('a', 4)}",
     "can't start: it needs 8 chips, and its queue has 4 of a"),
    (f"couldn't assign flavors to pod set slice: {TOO_LARGE.format('a', 4)}, {TOO_LARGE.format('a', 4)}",
     "can't start: it needs 8 chips, and its queue has 4 of a"),
    ("couldn't assign flavors to pod set slice: flavor a not found", "flavor a not found"),
    ("ClusterQueue tpu is inactive", "ClusterQueue tpu is inactive"),
])  # fmt: skip
def test_what_a_job_waits_for_is_said_in_chips_and_slices(message: str, why: str) -> None:
    assert status(jobset(), workload(QuotaReserved=("False", message))).why == why


def test_a_job_in_the_queue_has_its_place_and_what_holds_it() -> None:
    waiting = {"items": [{"metadata": {"name": "w-train"}, "positionInClusterQueue": 2}]}
    result = status(jobset(), workload(QuotaReserved=("False", unused("a", 16))), pending=waiting)
    assert (result.state, result.position, result.why) == (
        QUEUED, 3, "waits for 16 more chips of a",
    )  # fmt: skip
    assert (result.priority, result.hosts, result.running) == ("high", 4, 0)
    assert (result.restarts, result.counted) == (0, 0)


def test_a_job_of_which_the_queue_has_heard_nothing_is_queued_without_a_place() -> None:
    result = status(jobset())
    assert (result.state, result.position, result.why) == (QUEUED, None, "")


ADMITTED = workload(Admitted=("True", ""), QuotaReserved=("True", ""))


@pytest.mark.parametrize(("pods", "state", "running"), [
    ([pod(0, 0), pod(0, 1), pod(1, 0)], STARTING, 3),
    ([pod(0, 0), pod(0, 1), pod(1, 0), pod(1, 1)], RUNNING, 4),
    ([pod(0, 0), pod(0, 1), pod(1, 0), pod(1, 1, "Succeeded")], RUNNING, 4),
    ([pod(0, 0), pod(0, 1), pod(1, 0), pod(1, 1, "Failed")], STARTING, 3),
])  # fmt: skip
def test_a_job_runs_when_all_of_its_hosts_do(pods: list[Any], state: str, running: int) -> None:
    waiting = {"items": [{"metadata": {"name": "w-train"}}]}  # of a moment ago
    result = status(jobset(), ADMITTED, pods, pending=waiting)
    assert (result.state, result.running, result.position) == (state, running, None)


UNSCHEDULED = {
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes. and more",
}  # fmt: skip
PULL = {"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
CREATING = {"state": {"waiting": {"reason": "ContainerCreating"}}}


@pytest.mark.parametrize(("given", "why"), [
    ({"conditions": [UNSCHEDULED]}, "train-slice-0-0-1 isn't scheduled: 0/3 nodes"),
    ({"containerStatuses": [PULL]}, "train-slice-0-0-1: ErrImagePull: not found"),
    ({"containerStatuses": [CREATING]}, ""),
    ({"conditions": [{"type": "PodScheduled", "status": "True"}], "message": "no memory"}, "no memory"),
])  # fmt: skip
def test_what_holds_a_pod_is_named(given: dict[str, Any], why: str) -> None:
    assert status(jobset(), ADMITTED, [pod(0, 1), pod(0, 0, "Pending", **given)]).why == why
    assert status(jobset(), ADMITTED, [pod(0, 0, "Running", **given)]).why == ""


def test_a_quota_that_holds_a_pod_is_named_and_not_only_that_no_node_fits() -> None:
    text = "Node scale up in zones us-east5-b associated with this pod failed: GCE quota exceeded."

    def event(pod: str, stamp: str, message: str) -> dict[str, Any]:
        return {"involvedObject": {"name": pod}, "lastTimestamp": stamp, "message": message}

    events = [
        event("train-slice-0-0-1", "2026-11-26T10:01:00Z", text),
        event("train-slice-0-0-1", "2026-11-26T10:00:00Z", "GCE out of resources"),
        event("other", "2026-11-26T10:02:00Z", "GCE out of resources"),
    ]
    path = f"/api/v1/namespaces/{TEAM.namespace}/events"
    pods = [pod(0, 0, "Pending", conditions=[UNSCHEDULED])]
    waiting = status(jobset(), ADMITTED, pods, **{path: events})
    assert waiting.why == f"train-slice-0-0-1 isn't scheduled: {text}"


@pytest.mark.parametrize(("terminal", "state", "why"), [
    ("Completed", COMPLETED, ""), ("Failed", FAILED, "a worker failed: tpu job logs dev vision train"),
])  # fmt: skip
def test_how_a_job_ended_and_how_long_it_held_its_slices(terminal: str, state: str, why: str) -> None:
    ended = {"type": terminal, "status": "True", "message": "a worker failed", "lastTransitionTime": ENDED_AT}
    condition = jobset(terminalState=terminal, conditions=[ended], restarts=3, restartsCountTowardsMax=1)
    result = status(condition, ADMITTED)
    assert (result.state, result.why, result.restarts, result.counted) == (state, why, 3, 1)
    assert result.admitted_s == 30 * 60 + 30
    assert status(condition).admitted_s is None
    assert status(jobset(), ADMITTED).admitted_s is None


def ended(code: int, at: str, name: str = "worker") -> dict[str, Any]:
    return {
        "containerStatuses": [{"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": at}}}]
    }


FAIL_JOBSET = "applying FailJobSet failure policy action (first failed job: train-slice-1)"
FAILED_POD = pod(1, 0, "Failed", **ended(3, "2026-11-24T09:00:05Z"))
LOST_POD = pod(1, 0, "Failed", **ended(137, "2026-11-24T09:00:05Z"))


@pytest.mark.parametrize(("message", "pods", "why"), [
    (FAIL_JOBSET, [FAILED_POD], "worker 2 failed first, with status 3"),
    (FAIL_JOBSET, [], "its program ended with an error"),
    ("", [FAILED_POD], "worker 2 failed first, with status 3"),
    ("jobset failed due to reaching max number of restarts", [LOST_POD],
     "it lost workers more often than queue:restarts allows"),
])  # fmt: skip
def test_a_failed_job_names_its_worker_and_the_command_that_shows_why(
    message: str, pods: list[Any], why: str
) -> None:
    condition = {"type": "Failed", "status": "True", "message": message, "lastTransitionTime": ENDED_AT}
    result = status(jobset(terminalState="Failed", conditions=[condition]), ADMITTED, pods)
    assert result.why == f"{why}: tpu job logs dev vision train"


def test_jobs_stand_in_the_order_of_their_submission() -> None:
    own, _ = jobs(jobsets=[jobset("c", "2026-11-24T09:00:02Z"), jobset("b"), jobset("a")])
    assert [item.name for item in own.all()] == ["a", "b", "c"]
    assert own.status("missing") is None


def test_a_worker_is_counted_over_all_slices_and_its_newest_pod_is_found() -> None:
    own, api = jobs(pods=[pod(1, 0, made="1"), pod(1, 0, made="2"), pod(0, 0)])
    assert [own.worker("train", number) for number in (2, 0, 1)] == [
        "train-slice-1-0-2", "train-slice-0-0-1", None,
    ]  # fmt: skip
    (_, query), *_ = api.requests
    assert query["labelSelector"] == (
        "jobset.sigs.k8s.io/jobset-name=train,jobset.sigs.k8s.io/replicatedjob-name=slice"
    )


def test_whichever_failed_first_is_found_and_not_those_that_were_ended_for_its_sake() -> None:
    pods = [
        pod(0, 0, "Failed", **ended(143, "2026-11-24T09:00:00Z")),
        pod(0, 1, "Failed", **ended(3, "2026-11-24T09:00:05Z")),
        pod(1, 0, "Failed", **ended(1, "2026-11-24T09:00:03Z")),
        pod(1, 1, "Failed", **ended(9, "2026-11-24T08:00:00Z", "gke-gcsfuse-sidecar")),
    ]
    assert jobs(pods=pods)[0].failed("train") == (2, "train-slice-1-0-1", 1)
    assert jobs(pods=pods[:1])[0].failed("train") == (0, "train-slice-0-0-1", 143)
    assert jobs(pods=[pod(0, 0, "Succeeded", **ended(0, "2026-11-24T09:00:00Z"))])[0].failed("train") is None


def test_a_log_continues_behind_the_last_line() -> None:
    text = "2026-11-24T09:00:01.5Z one\n2026-11-24T09:00:01.7Z two  \nwithout a time\n2026-11-24T09:00:02Z \n"
    own, api = jobs(**{f"{PODS}/p/log": text})
    assert [line for _, line in own.log("p")] == ["one", "two  ", ""]
    assert [line for _, line in own.log("p", "2026-11-24T09:00:01.5Z", 7)] == ["two  ", ""]
    first, second = (query for _, query in api.requests)
    assert first == {"container": "worker", "timestamps": "true"}
    assert (second["sinceTime"], second["tailLines"]) == ("2026-11-24T09:00:01Z", "7")


@pytest.mark.parametrize("kind", [Kind.MISSING, Kind.INVALID])
def test_a_pod_without_a_log_has_no_lines(kind: Kind) -> None:
    assert list(jobs(kind)[0].log("p")) == []


def test_a_log_that_may_not_be_read_is_an_error() -> None:
    with pytest.raises(RequestError):
        list(jobs(Kind.PERMISSION)[0].log("p"))


def job() -> Job:
    return Job("train", TEAM, "image", ["train"], topology="4x4", hosts=4, chips_per_host=4)


@pytest.mark.parametrize(("failure", "error", "message"), [
    (Kind.EXISTS, InfraError, r"vision has a job train already\n.* or tpu job cancel dev vision train$"),
    (Kind.PERMISSION, RequestError, "refused"),
])  # fmt: skip
def test_why_a_job_isnt_taken(failure: Kind, error: type[Exception], message: str) -> None:
    own, _ = jobs(failure, **{f"/apis/kueue.x-k8s.io/v1beta2/{QUEUE}": {}})
    with pytest.raises(error, match=message):
        own.submit(job())


class Losing(requests.Session):
    """A control plane that creates jobs, and the answer to whose first creation is lost."""

    def __init__(self, **jobsets: Any) -> None:
        super().__init__()
        self.jobsets, self.lost = jobsets, False

    def request(self, method: Any, url: Any, params: Any = None, data: Any = None, **_: Any) -> Any:
        answer = requests.Response()
        body: dict[str, Any] = self.jobsets.get(url.rpartition("/")[2], {})
        answer.status_code = 200
        if method == "POST":
            body = json.loads(data)
            if body["metadata"]["name"] in self.jobsets:
                answer.status_code, message = 409, 'jobsets.jobset.x-k8s.io "train" already exists'
                body = {"kind": "Status", "message": message, "reason": "AlreadyExists", "code": 409}
            elif "dryRun" not in params:
                self.jobsets["train"] = body
                if not self.lost:
                    self.lost = True
                    raise requests.ConnectionError("Connection reset by peer")
        answer._content = json.dumps(body).encode()
        return answer


def test_a_job_whose_answer_was_lost_is_no_strangers() -> None:
    api = Losing()
    cluster = Cluster(Client("p", api, sleep=lambda _: None), "gke-1.us-east5.gke.goog")
    Jobs(cluster, TEAM, "dev").submit(job())
    assert (api.lost, [*api.jobsets]) == (True, ["train"])
    for other in (api.jobsets["train"], {"metadata": {"name": "train"}}):  # of an earlier request, of kubectl
        api = Losing(train=other)
        cluster = Cluster(Client("p", api, sleep=lambda _: None), "gke-1.us-east5.gke.goog")
        with pytest.raises(InfraError, match="vision has a job train already"):
            Jobs(cluster, TEAM, "dev").submit(job())


def test_a_job_is_tried_before_it_is_made_and_not_without_its_queue() -> None:
    own, api = jobs(**{f"/apis/kueue.x-k8s.io/v1beta2/{QUEUE}": {}})
    own.submit(job())
    assert api.requests == [(JOBSETS, {"dryRun": "All"}), (JOBSETS, {})]
    own, api = jobs()
    message = r"the namespace vision-space has no queue default\n    fix: .*tpu up dev queue$"
    with pytest.raises(InfraError, match=message):
        own.submit(job())
    assert api.requests == []


def test_what_is_cancelled_was_there() -> None:
    own, _ = jobs(**{f"{JOBSETS}/train": {}})
    assert (own.cancel("train"), own.cancel("other")) == (True, False)

"""The rules that the API server has for JobSets with chips, on manifests as users write them."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from infra.layers.queue import admission, namespace
from infra.layers.queue.jobs.jobset import Job, jobset
from infra.layers.queue.kueue import Team, objects
from infra.layers.queue.namespace import Volumes
from infra.layers.queue.ready import wait
from rehearsal.kubernetes.errors import ApiServerError
from tests.docs.test_guides import examples
from tests.rehearsal.kubernetes.lab import HOSTS, INSIDE, Lab, output

TEAM, OTHERS = Team("vision", "vision"), Team("speech", "speech")
CLUSTER = "projects/my-project/locations/us-east5/clusters/tpu"
IMAGE = f"us-docker.pkg.dev/p/i/image@sha256:{'0' * 64}"
POOLS = [
    output("admission-0"),
    output("big-0", topology="16x16", chips=256, hosts=64),
    output("extract-0", topology="2x4", chips=8, hosts=1),  # docs/reference/queue.md extracts there
]
POLICY = ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy")
QUEUE = "kueue.x-k8s.io/queue-name"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module", name="cluster")
def _cluster(lab: Lab) -> Iterator[Lab]:
    """For the module alone: other modules' jobs run images of no registry."""
    rules = list(admission.objects(POOLS, [TEAM, OTHERS], CLUSTER))

    def make() -> None:
        lab.api.apply_all(list(objects([output("admission-0")])), "tests")
        for team in (TEAM, OTHERS):
            lab.api.apply_all(list(namespace.objects(team, [], "trainer", None, Volumes("bucket"))), "tests")
        lab.api.apply_all(rules, "tests")
        # Policies are in force some moments after they are created.
        lab.until(lambda: refusal(lab, manifest(image="debian")), "the policy")

    INSIDE.submit(make).result()
    yield lab

    def end() -> None:
        for body in rules:
            lab.api.delete(lab.api.path(body))
        lab.until(lambda: not refusal(lab, manifest(image="debian")), "the policy's end")

    INSIDE.submit(end).result()


def manifest(change: Change = lambda body: None, **more: Any) -> dict[str, Any]:
    job = {"topology": "4x4", "hosts": HOSTS, "chips_per_host": 4, "image": IMAGE, "cluster": CLUSTER, **more}
    body = copy.deepcopy(jobset(Job("raw", TEAM, command=["workload"], **job)))
    change(body)
    return body


def refusal(lab: Lab, body: dict[str, Any]) -> str:
    """Return the API server's refusal of a JobSet, applied as kubectl does; empty if it is accepted."""
    try:
        lab.api.apply(body, "tests", dry=True)
    except ApiServerError as error:
        return str(error)
    return ""


def pod(body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return answer


def only_at_the_start(body: dict[str, Any]) -> None:
    worker = pod(body)["containers"][0]
    chips = worker.pop("resources")
    pod(body)["initContainers"] = [{"name": "first", "image": IMAGE, "resources": chips}]


def without_chips(body: dict[str, Any], pods: int = 4) -> None:
    """Make the job one of CPU pods, which no rule of slices concerns."""
    del pod(body)["containers"][0]["resources"]
    body["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = pods


def twice(body: dict[str, Any]) -> None:
    without_chips(body)
    (first,) = body["spec"]["replicatedJobs"]
    body["spec"]["replicatedJobs"].append({**copy.deepcopy(first), "name": "more"})


def test_what_this_project_writes_is_taken(cluster: Lab) -> None:
    for body in (
        manifest(),
        manifest(slices=2),
        manifest(topology="16x16", hosts=64),
        manifest(cluster=""),
        manifest(without_chips),
    ):
        assert refusal(cluster, body) == ""


def test_the_examples_of_the_page_are_taken(
    cluster: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = examples(tmp_path, monkeypatch)
    assert len(answer) == 4
    for body in answer.values():
        assert refusal(cluster, body) == ""


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("a topology that no pool has", manifest(topology="8x8", hosts=16),
     "slice has the topology 8x8, and the pools have 2x4, 4x4, 16x16; fix: "
     "cloud.google.com/gke-tpu-topology: 4x4, or such a pool in gke:tpuPools"),
    ("another, nearer to the other pool", manifest(topology="8x16", hosts=32), "gke-tpu-topology: 4x4, or"),
    ("a topology that isn't v6e's", manifest(topology="2x2x1"),
     "the topology 2x2x1, and the pools have 2x4, 4x4, 16x16; fix: cloud.google.com/gke-tpu-topology: 2x4"),
    ("no topology", manifest(lambda body: pod(body).pop("nodeSelector")), "slice has the topology none"),
    ("more hosts than a slice has", manifest(hosts=8),
     "slice has 8x4 chips (parallelism x google.com/tpu of a pod), and a slice of 4x4 is 4x4; fix: one pod "
     "on each host, with all of its chips"),
    ("fewer hosts", manifest(hosts=2), "slice has 2x4 chips"),
    ("a part of the chips", manifest(chips_per_host=1), "slice has 4x1 chips"),
    ("an image without a digest", manifest(image="us-docker.pkg.dev/p/i/image:latest"),
     "slice has an image without a digest, which may be another one tomorrow; fix: IMAGE@sha256:..., by "
     "crane digest"),
    ("an initial container without one",
     manifest(lambda body: pod(body).update(initContainers=[{"name": "i", "image": "debian"}])),
     "slice has an image without a digest"),
    ("chips for an initial container alone", manifest(only_at_the_start, hosts=8), "slice has 8x4 chips"),
    ("another queue", manifest(lambda body: body["metadata"]["labels"].update({QUEUE: "fast"})),
     "the label kueue.x-k8s.io/queue-name is fast, and jobs wait in queues alone; fix: write "
     "kueue.x-k8s.io/queue-name: default"),
    ("a namespace without a queue", manifest(lambda body: body["metadata"].update(namespace="default")),
     "the namespace default is no team's and has no queue; fix: write the namespace of a team (speech, "
     "vision), or add a team to queue:teams"),
    ("a manifest for another cluster", manifest(cluster=CLUSTER.replace("my-project", "prod")),
     "the manifest was written for projects/prod/locations/us-east5/clusters/tpu, and this is "
     f"{CLUSTER}; fix: kubectl config use-context, or tpu job submit --out anew"),
    ("another account", manifest(lambda body: pod(body).update(serviceAccountName="admin")),
     "slice runs as another account than the team's; fix: serviceAccountName: trainer"),
    ("pods without chips, of an image without a digest", manifest(without_chips, image="debian"),
     "slice has an image without a digest"),
    ("pods without chips in another queue",
     manifest(lambda body: [without_chips(body), body["metadata"]["labels"].update({QUEUE: "other"})]),
     "the label"),
    ("many pods without chips", manifest(lambda body: without_chips(body, 5)),
     "slice has 5 pods without chips, on nodes that no queue rations; fix: 4 at most"),
    ("several groups of pods without chips", manifest(twice),
     "several replicatedJobs have pods without chips; fix: one at most"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_run_is_refused_with_the_rule_and_the_way_out(
    body: dict[str, Any], message: str, cluster: Lab
) -> None:
    answer = refusal(cluster, body)
    assert message in answer
    assert "ValidatingAdmissionPolicy 'tpu-jobs'" in answer


def test_where_all_pools_are_gone_a_pool_is_the_way_out(cluster: Lab) -> None:
    """As `count: 0` leaves the cluster."""
    cluster.api.apply_all(list(admission.objects([], [TEAM, OTHERS], CLUSTER)), "tests")
    message = (
        "slice has the topology 4x4, and the cluster has no pools with TPUs; fix: such a pool in gke:tpuPools"
    )
    try:
        cluster.until(lambda: message in refusal(cluster, manifest()), "the policy without pools")
    finally:
        cluster.api.apply_all(list(admission.objects(POOLS, [TEAM, OTHERS], CLUSTER)), "tests")
        cluster.until(lambda: not refusal(cluster, manifest()), "the policy as it was")


def test_without_a_label_kueue_puts_a_job_into_the_teams_queue(cluster: Lab) -> None:
    body = manifest(lambda body: body["metadata"].pop("labels"))
    made = cluster.api.apply(body, "tests", dry=True)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default"


def test_all_that_is_wrong_is_named_at_once(cluster: Lab) -> None:
    answer = refusal(cluster, manifest(topology="8x8", image="debian", cluster="projects/p"))
    for part in ("has the topology 8x8", "without a digest", "was written for projects/p"):
        assert part in answer


def test_controllers_that_are_new_are_waited_for_beside_the_policy(
    cluster: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, pair = requests.Session(), cluster.control_plane.admin
    admin.trust_env = False
    admin.verify, admin.cert = str(cluster.control_plane.authority.ca), (str(pair.certificate), str(pair.key))
    monkeypatch.setattr("infra.google.client._login", lambda: admin)
    assert wait("p", cluster.control_plane.url.removeprefix("https://"), 30) < 30


def test_the_api_server_finds_no_error_in_the_rules(cluster: Lab) -> None:
    def status() -> Any:
        answer = cluster.api.get(
            "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", admission.NAME
        )
        assert answer is not None
        return answer.get("status", {}).get("typeChecking")

    assert cluster.until(lambda: status() is not None and [status()], "the rules' types") == [{}]

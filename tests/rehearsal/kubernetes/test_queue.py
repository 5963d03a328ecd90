"""Jobs on a real Kueue and JobSet: queued, preempted by priority, and placed again when hosts are lost."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from infra.layers.queue import namespace
from infra.layers.queue.jobs import jobset
from infra.layers.queue.jobs.jobset import Job
from infra.layers.queue.kueue import Team, objects
from infra.layers.queue.namespace import Volumes
from rehearsal.kubernetes.errors import ApiError
from tests.rehearsal.kubernetes.lab import HOSTS, INSIDE, JOBSET, MACHINE, Lab, output, pool

VISION, SPEECH = Team("vision", "vision"), Team("speech", "speech")
# The first process of a container ends at SIGTERM only where it has a handler for it.
WAIT = ["sh", "-c", "trap 'exit 143' TERM; sleep 1000 & wait"]


@pytest.fixture(scope="module", name="queue")
def _queue(lab: Lab) -> Lab:
    def make() -> None:
        for name in ("train-0", "train-1"):
            lab.add_pool(pool(name))
        lab.api.apply_all(list(objects([output("train-0"), output("train-1")])), "tests")
        for team in (VISION, SPEECH):
            mine = namespace.objects(team, ["user:ada@example.com"], "trainer", None, Volumes("bucket"))
            lab.api.apply_all(list(mine), "tests")

    INSIDE.submit(make).result()
    return lab


def job(name: str, team: Team, command: Sequence[str], **more: Any) -> Job:
    return Job(name, team, MACHINE, command, topology="4x4", hosts=HOSTS, chips_per_host=4, **more)


def submit(lab: Lab, one: Job) -> None:
    lab.api.create(jobset.jobset(one))


def accepted(lab: Lab, one: Job) -> bool:
    try:
        submit(lab, one)
    except ApiError as error:
        if "webhook" not in str(error):
            raise
        return False
    return True


def pods(lab: Lab, one: Job, phase: str = "Running") -> list[dict[str, Any]]:
    found = lab.api.list(
        "v1", "Pod", one.team.namespace, labelSelector=f"jobset.sigs.k8s.io/jobset-name={one.name}"
    )
    return [
        pod
        for pod in found
        if pod["status"].get("phase") == phase and "deletionTimestamp" not in pod["metadata"]
    ]


def running(lab: Lab, one: Job) -> bool:
    if len(pods(lab, one)) < one.hosts * one.slices:
        return False
    time.sleep(0.2)  # for the shells to set their traps
    return True


def ended(lab: Lab, one: Job) -> str:
    """What became of it: Completed, Failed, or nothing yet."""
    found = lab.api.get(*JOBSET, one.name, one.team.namespace)
    assert found is not None
    return str(found.get("status", {}).get("terminalState", ""))


def status(lab: Lab, one: Job) -> dict[str, Any]:
    found = lab.api.get(*JOBSET, one.name, one.team.namespace)
    assert found is not None
    return dict(found.get("status", {}))


def remove(lab: Lab, *jobs: Job) -> None:
    for one in jobs:
        lab.api.delete(lab.api.place(*JOBSET, one.team.namespace, one.name))
    for one in jobs:
        lab.until(lambda one=one: not lab.api.list("v1", "Pod", one.team.namespace,
                  labelSelector=f"jobset.sigs.k8s.io/jobset-name={one.name}"), f"the end of {one.name}", 60)  # type: ignore[misc]  # fmt: skip


def test_a_job_runs_on_one_pool_and_every_host_knows_its_place(queue: Lab) -> None:
    print(
        "control plane from nothing: {:.1f} s; Kueue and JobSet ready: {:.1f} s more".format(*queue.began_s)
    )
    print_place = 'echo "$JOB_SLICE/$JOB_SLICES $JOB_WORKER/$JOB_HOSTS $JOB_COORDINATOR"'
    one = job("place", VISION, ["sh", "-c", print_place])
    submit(queue, one)
    queue.until(lambda: ended(queue, one) == "Completed", "the job's end")
    done = pods(queue, one, "Succeeded")
    places = [queue.agent.log(VISION.namespace, pod["metadata"]["name"], "worker").strip() for pod in done]
    assert sorted(places) == [f"0/1 {worker}/4 place-slice-0-0.place" for worker in range(HOSTS)]
    used = {queue.agent.nodes[pod["spec"]["nodeName"]]["metadata"]["labels"]["cloud.google.com/gke-nodepool"]
            for pod in done}  # fmt: skip
    assert len(used) == 1, "a slice is one node pool"
    remove(queue, one)


def test_jobs_of_two_teams_queue_and_a_higher_priority_preempts(queue: Lab) -> None:
    first, both = (
        job("first", VISION, WAIT, priority="low"),
        job("both", SPEECH, WAIT, slices=2, priority="low"),
    )
    urgent = job("urgent", VISION, WAIT, slices=2, priority="high")
    submit(queue, first)
    queue.until(lambda: running(queue, first), "the first job")
    submit(queue, both)
    time.sleep(2)
    assert not pods(queue, both, "Pending")
    assert not pods(queue, both)
    place = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/tpu/pendingworkloads"
    pending = queue.api.request("GET", place)["items"]
    assert [one["localQueueName"] for one in pending] == ["default"]
    submit(queue, urgent)
    queue.until(lambda: running(queue, urgent), "the urgent job", 60)
    assert not pods(queue, first), "it was preempted"
    remove(queue, urgent)
    queue.until(lambda: running(queue, first), "the preempted job again", 60)
    assert status(queue, first).get("restarts", 0) == 0
    remove(queue, first)
    queue.until(lambda: running(queue, both), "the job of two slices", 60)
    remove(queue, both)


@pytest.mark.parametrize(("how", "limit_s"), [("preempt", 30), ("lose", 90)])
def test_a_lost_slice_is_placed_again_and_costs_no_restart(queue: Lab, how: str, limit_s: float) -> None:
    """Without notice it takes Kubernetes' garbage collector 40 seconds to give a lost node's pods up."""
    one = job(how, VISION, WAIT, restarts=0)
    submit(queue, one)
    queue.until(lambda: running(queue, one), "the job")
    nodes = sorted(pod["spec"]["nodeName"] for pod in pods(queue, one))
    begun = time.monotonic()
    getattr(queue, how)(*nodes)

    def moved() -> bool:
        now = [pod["spec"]["nodeName"] for pod in pods(queue, one)]
        return len(now) == one.hosts and not {*now} & {*nodes}

    queue.until(moved, "the job on the other pool", limit_s)
    print(f"{how}: running again after {time.monotonic() - begun:.1f} s")
    assert status(queue, one).get("restartsCountTowardsMax", 0) == 0
    remove(queue, one)
    queue.add_pool(pool("train-0" if "train-0" in nodes[0] else "train-1"))


def test_a_program_that_fails_ends_its_job_at_once(queue: Lab) -> None:
    one = job("broken", VISION, ["sh", "-c", "exit 1"], restarts=4)
    submit(queue, one)
    queue.until(lambda: ended(queue, one) == "Failed", "the job's end")
    assert status(queue, one).get("restarts", 0) == 0
    remove(queue, one)


@pytest.mark.parametrize(("status_", "counted"), [(75, 0), (143, 0), (69, 1), (134, 1), (137, 1)])
def test_an_exit_status_that_speaks_of_another_worker_restarts_the_job(
    queue: Lab, status_: int, counted: int
) -> None:
    """75: all saved, since one has notice. The others: one was lost, which may be the fault of the job."""
    one = job(f"status-{status_}", VISION, ["sh", "-c", f"sleep 1; exit {status_}"], restarts=1)
    submit(queue, one)
    queue.until(lambda: status(queue, one).get("restarts", 0) >= 1, "its restart", 60)
    found = status(queue, one)
    assert found.get("restartsCountTowardsMax", 0) == (found["restarts"] if counted else 0)
    if counted:
        queue.until(lambda: ended(queue, one) == "Failed", "the end of its restarts", 60)
    remove(queue, one)


def test_a_machine_that_comes_back_under_its_name_ends_what_ran_on_it(queue: Lab) -> None:
    """As GKE's do; the job begins again, and spends a restart: nothing says that its host was lost."""
    one = job("rebooted", VISION, WAIT, restarts=1)
    submit(queue, one)
    queue.until(lambda: running(queue, one), "the job")
    before = {pod["metadata"]["uid"] for pod in pods(queue, one)}
    nodes = sorted(pod["spec"]["nodeName"] for pod in pods(queue, one))
    queue.agent.lose(*nodes)
    queue.add_pool(pool("train-0" if "train-0" in nodes[0] else "train-1"))
    queue.until(lambda: running(queue, one) and not {p["metadata"]["uid"] for p in pods(queue, one)} & before,
                "the job again", 60)  # fmt: skip
    found = status(queue, one)
    assert (found["restarts"], found["restartsCountTowardsMax"]) == (1, 1)
    remove(queue, one)


def test_maintenance_spends_no_restart(queue: Lab) -> None:
    one = job("moved", VISION, WAIT, restarts=0)
    submit(queue, one)
    queue.until(lambda: running(queue, one), "the job")
    before = {pod["metadata"]["uid"] for pod in pods(queue, one)}
    victim = pods(queue, one)[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": victim, "namespace": VISION.namespace}}  # fmt: skip
    queue.api.request("POST", queue.api.place("v1", "Pod", VISION.namespace, victim) + "/eviction", eviction)
    queue.until(lambda: running(queue, one) and not {p["metadata"]["uid"] for p in pods(queue, one)} & before,
                "the job again", 60)  # fmt: skip
    found = status(queue, one)
    assert (found["restarts"], found.get("restartsCountTowardsMax", 0)) == (1, 0)
    remove(queue, one)


def test_a_job_goes_on_while_the_api_server_is_restarted(queue: Lab) -> None:
    one = job("steady", VISION, WAIT)
    submit(queue, one)
    queue.until(lambda: running(queue, one), "the job")
    before = {pod["metadata"]["uid"] for pod in pods(queue, one)}
    queue.control_plane.restart("kube-apiserver")
    assert {pod["metadata"]["uid"] for pod in pods(queue, one)} == before
    remove(queue, one)  # by the agent's new watch
    after = job("after", VISION, ["true"])
    # JobSet's controller ends where it loses its lease, and comes back with its webhook.
    queue.until(lambda: accepted(queue, after), "a job after the restart", 90)
    queue.until(lambda: ended(queue, after) == "Completed", "its end", 90)
    remove(queue, after)


@pytest.mark.parametrize(("strategy", "passes"), [("BestEffortFIFO", True), ("StrictFIFO", False)])
def test_whether_a_job_for_other_pools_waits_behind_one_that_doesnt_fit(
    strategy: str, passes: bool, queue: Lab
) -> None:
    """Why StrictFIFO isn't the default: all kinds of pools have one queue."""
    here, there = ({"topology.kubernetes.io/zone": f"us-east5-{zone}"} for zone in "ba")
    known = [output("train-0"), output("train-1"), output("other-0", zone="us-east5-a")]
    if not any("other-0" in node for node in queue.agent.nodes):
        queue.add_pool(pool("other-0", locations=["us-east5-a"]))
    queue.api.apply_all(list(objects(known, strategy)), "tests")
    name = strategy.lower()
    both = job(f"{name}-both", VISION, WAIT, slices=2, selector=here)
    behind = job(f"{name}-behind", VISION, WAIT, selector=here)
    other = job(f"{name}-other", SPEECH, WAIT, selector=there)
    submit(queue, both)
    queue.until(lambda: running(queue, both), "the job on all pools of its kind", 60)
    submit(queue, behind)
    time.sleep(2)
    submit(queue, other)
    if passes:
        queue.until(lambda: running(queue, other), "the job for other pools", 60)
    else:
        time.sleep(5)
        assert not pods(queue, other)
        remove(queue, both)
        queue.until(lambda: running(queue, behind) and running(queue, other), "both that waited", 60)
    remove(queue, behind, other, *([both] if passes else []))
    queue.api.apply_all(list(objects([output("train-0"), output("train-1")])), "tests")

"""Jobs on a real Kueue and JobSet: queued, preempted by priority, and placed again when hosts are lost."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from infra.layers.queue import admission
from infra.layers.queue.jobs.jobset import Job
from infra.layers.queue.kueue import API, Quota, Team, local_queue, objects
from rehearsal.kubernetes.errors import ApiServerError
from tests.rehearsal.kubernetes.lab import HOSTS, INSIDE, MACHINE, Lab, output, pool

VISION, SPEECH = Team("vision", "vision"), Team("speech", "speech")
# The first process of a container ends at SIGTERM only where it has a handler for it.
WAIT = ["sh", "-c", "trap 'exit 143' TERM; sleep 1000 & wait"]


@pytest.fixture(scope="module", name="queue")
def _queue(lab: Lab) -> Lab:
    teams = {team: ["user:ada@example.com"] for team in (VISION, SPEECH)}
    INSIDE.submit(lab.queue, {"train-0": {}, "train-1": {}}, teams).result()
    return lab


def job(name: str, team: Team, command: Sequence[str], **more: Any) -> Job:
    return Job(name, team, MACHINE, command, topology="4x4", hosts=HOSTS, chips_per_host=4, **more)


def accepted(lab: Lab, work: Job) -> bool:
    try:
        lab.submit(work)
    except ApiServerError as error:
        if "webhook" not in str(error):
            raise
        return False
    return True


def uids(lab: Lab, work: Job) -> set[str]:
    return {pod["metadata"]["uid"] for pod in lab.pods(work, "Running")}


def replaced(lab: Lab, work: Job, before: set[str]) -> bool:
    """Return True if all pods of the job run, and none of these."""
    return lab.running(work) and not uids(lab, work) & before


def test_a_job_runs_on_one_pool_and_every_host_knows_its_place(queue: Lab) -> None:
    print(
        "control plane from nothing: {:.1f} s; Kueue and JobSet ready: {:.1f} s more".format(*queue.began_s)
    )
    print_place = 'echo "$JOB_SLICE/$JOB_SLICES $JOB_WORKER/$JOB_HOSTS $JOB_COORDINATOR"'
    work = job("place", VISION, ["sh", "-c", print_place])
    queue.submit(work)
    queue.until(lambda: queue.ended(work) == "Completed", "the job's end")
    done = queue.pods(work, "Succeeded")
    places = [queue.agent.log(VISION.namespace, pod["metadata"]["name"], "worker").strip() for pod in done]
    assert sorted(places) == [f"0/1 {worker}/4 place-slice-0-0.place" for worker in range(HOSTS)]
    used = {queue.agent.nodes[pod["spec"]["nodeName"]]["metadata"]["labels"]["cloud.google.com/gke-nodepool"]
            for pod in done}  # fmt: skip
    assert len(used) == 1, "a slice is one node pool"
    queue.remove(work)


def test_jobs_of_two_teams_queue_and_a_higher_priority_preempts(queue: Lab) -> None:
    first, both = (
        job("first", VISION, WAIT, priority="low"),
        job("both", SPEECH, WAIT, slices=2, priority="low"),
    )
    urgent = job("urgent", VISION, WAIT, slices=2, priority="high")
    queue.submit(first)
    queue.until(lambda: queue.running(first), "the first job")
    queue.submit(both)
    time.sleep(2)
    assert not queue.pods(both, "Pending")
    assert not queue.pods(both, "Running")
    place = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/tpu/pendingworkloads"
    pending = queue.api.request("GET", place)["items"]
    assert [work["localQueueName"] for work in pending] == ["default"]
    queue.submit(urgent)
    queue.until(lambda: queue.running(urgent), "the urgent job")
    assert not queue.pods(first, "Running"), "it was preempted"
    queue.remove(urgent)
    queue.until(lambda: queue.running(first), "the preempted job again")
    assert queue.status(first).get("restarts", 0) == 0
    queue.remove(first)
    queue.until(lambda: queue.running(both), "the job of two slices")
    queue.remove(both)


@pytest.mark.parametrize(("how", "limit_s"), [("preempt", 30), ("lose", 90)])
def test_a_lost_slice_is_placed_again_and_costs_no_restart(queue: Lab, how: str, limit_s: float) -> None:
    """Without notice it takes Kubernetes' garbage collector 40 seconds to give a lost node's pods up."""
    work = job(how, VISION, WAIT, restarts=0)
    queue.submit(work)
    queue.until(lambda: queue.running(work), "the job")
    nodes = sorted(pod["spec"]["nodeName"] for pod in queue.pods(work, "Running"))
    begun = time.monotonic()
    getattr(queue, how)(*nodes)

    def moved() -> bool:
        now = [pod["spec"]["nodeName"] for pod in queue.pods(work, "Running")]
        return len(now) == work.hosts and not {*now} & {*nodes}

    queue.until(moved, "the job on the other pool", limit_s)
    print(f"{how}: running again after {time.monotonic() - begun:.1f} s")
    assert queue.status(work).get("restartsCountTowardsMax", 0) == 0
    queue.remove(work)
    queue.add_pool(pool("train-0" if "train-0" in nodes[0] else "train-1"))


def test_a_program_that_fails_ends_its_job_at_once(queue: Lab) -> None:
    work = job("broken", VISION, ["sh", "-c", "exit 1"], restarts=4)
    queue.submit(work)
    queue.until(lambda: queue.ended(work) == "Failed", "the job's end")
    assert queue.status(work).get("restarts", 0) == 0
    queue.remove(work)


@pytest.mark.parametrize(("status_", "counted"), [(75, 0), (143, 0), (69, 1), (134, 1), (137, 1)])
def test_an_exit_status_that_speaks_of_another_worker_restarts_the_job(
    queue: Lab, status_: int, counted: int
) -> None:
    """75: all saved, since one has notice. The others: one was lost, which may be the fault of the job."""
    work = job(f"status-{status_}", VISION, ["sh", "-c", f"sleep 1; exit {status_}"], restarts=1)
    queue.submit(work)
    queue.until(lambda: queue.status(work).get("restarts", 0) >= 1, "its restart")
    answer = queue.status(work)
    assert answer.get("restartsCountTowardsMax", 0) == (answer["restarts"] if counted else 0)
    if counted:
        queue.until(lambda: queue.ended(work) == "Failed", "the end of its restarts")
    queue.remove(work)


def test_a_machine_that_comes_back_under_its_name_ends_what_ran_on_it(queue: Lab) -> None:
    """As GKE's do; the job begins again, and spends a restart: nothing says that its host was lost."""
    work = job("rebooted", VISION, WAIT, restarts=1)
    queue.submit(work)
    queue.until(lambda: queue.running(work), "the job")
    before = uids(queue, work)
    nodes = sorted(pod["spec"]["nodeName"] for pod in queue.pods(work, "Running"))
    queue.agent.lose(*nodes)
    queue.add_pool(pool("train-0" if "train-0" in nodes[0] else "train-1"))
    queue.until(lambda: replaced(queue, work, before), "the job again")
    answer = queue.status(work)
    assert (answer["restarts"], answer["restartsCountTowardsMax"]) == (1, 1)
    queue.remove(work)


def test_maintenance_spends_no_restart(queue: Lab) -> None:
    work = job("moved", VISION, WAIT, restarts=0)
    queue.submit(work)
    queue.until(lambda: queue.running(work), "the job")
    before = uids(queue, work)
    victim = queue.pods(work, "Running")[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": victim, "namespace": VISION.namespace}}  # fmt: skip
    queue.api.request("POST", queue.api.place("v1", "Pod", VISION.namespace, victim) + "/eviction", eviction)
    queue.until(lambda: replaced(queue, work, before), "the job again")
    answer = queue.status(work)
    assert (answer["restarts"], answer.get("restartsCountTowardsMax", 0)) == (1, 0)
    queue.remove(work)


def test_a_job_goes_on_while_the_api_server_is_restarted(queue: Lab) -> None:
    work = job("steady", VISION, WAIT)
    queue.submit(work)
    queue.until(lambda: queue.running(work), "the job")
    before = uids(queue, work)
    queue.control_plane.restart("kube-apiserver")
    assert uids(queue, work) == before
    queue.remove(work)  # by the agent's new watch
    after = job("after", VISION, ["true"])
    # JobSet's controller ends where it loses its lease, and comes back with its webhook.
    queue.until(lambda: accepted(queue, after), "a job after the restart")
    queue.until(lambda: queue.ended(after) == "Completed", "its end")
    queue.remove(after)


@pytest.mark.parametrize(("strategy", "passes"), [("BestEffortFIFO", True), ("StrictFIFO", False)])
def test_whether_a_job_for_other_pools_waits_behind_one_that_doesnt_fit(
    strategy: str, passes: bool, queue: Lab
) -> None:
    """The reason for another default than StrictFIFO: all kinds of pools have one queue."""
    zone_b, zone_a = ({"topology.kubernetes.io/zone": f"us-east5-{zone}"} for zone in "ba")
    known = [output("train-0"), output("train-1"), output("other-0", zone="us-east5-a")]
    if not any("other-0" in node for node in queue.agent.nodes):
        queue.add_pool(pool("other-0", locations=["us-east5-a"]))
    queue.api.apply_all(list(objects(known, strategy)), "tests")
    name = strategy.lower()
    both = job(f"{name}-both", VISION, WAIT, slices=2, selector=zone_b)
    behind = job(f"{name}-behind", VISION, WAIT, selector=zone_b)
    other = job(f"{name}-other", SPEECH, WAIT, selector=zone_a)
    queue.submit(both)
    queue.until(lambda: queue.running(both), "the job on all pools of its kind")
    queue.submit(behind)
    time.sleep(2)
    queue.submit(other)
    if passes:
        queue.until(lambda: queue.running(other), "the job for other pools")
    else:
        time.sleep(5)
        assert not queue.pods(other, "Running")
        queue.remove(both)
        queue.until(lambda: queue.running(behind) and queue.running(other), "both that waited")
    queue.remove(behind, other, *([both] if passes else []))
    queue.api.apply_all(list(objects([output("train-0"), output("train-1")])), "tests")


OWN = (
    Team("vision", "vision", "quota", "tpu-vision", (Quota("train", 16),), priorities=("low", "medium")),
    Team("speech", "speech", "quota", "tpu-speech", (Quota("train", 16),)),
)


def test_a_teams_quota_comes_back_from_a_team_that_borrows_it(queue: Lab) -> None:
    known = [output("train-0"), output("train-1")]
    queue.api.apply_all([*objects(known, teams=OWN), *map(local_queue, OWN)], "tests")
    borrowing = [job(f"borrows-{number}", OWN[1], WAIT, priority="high") for number in range(2)]
    for work in borrowing:
        queue.submit(work)
    queue.until(lambda: all(queue.running(work) for work in borrowing), "a team on both pools")
    own = job("own", OWN[0], WAIT, priority="low")
    queue.submit(own)
    queue.until(lambda: queue.running(own), "the job of the team whose quota it is")
    assert sum(queue.running(work) for work in borrowing) == 1
    queue.remove(own, *borrowing)
    queue.api.apply_all(list(objects(known)), "tests")
    for team in OWN:  # other modules' teams share the queue
        queue.api.delete(queue.api.path(local_queue(team)))
        queue.api.delete(queue.api.place(API, "ClusterQueue", name=team.cluster_queue))


def test_a_team_may_not_take_a_priority_that_its_settings_leave_out(queue: Lab) -> None:
    policies = list(admission.objects([output("train-0")], OWN, "projects/p/locations/l/clusters/c"))
    queue.api.apply_all(policies, "tests")

    def refusal(priority: str) -> str:
        refused = job("priority", OWN[0], WAIT, priority=priority)
        try:
            queue.submit(refused)
        except ApiServerError as error:
            return str(error)
        queue.remove(refused)
        return ""

    queue.until(lambda: "this team may use low or medium" in refusal("high"), "the policy")
    assert "this team may use" not in refusal("medium")
    for policy in policies:
        queue.api.delete(
            queue.api.place(policy["apiVersion"], policy["kind"], name=policy["metadata"]["name"])
        )
    queue.until(lambda: "this team may use" not in refusal("high"), "the policy's end")

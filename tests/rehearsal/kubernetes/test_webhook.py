"""The imitated webhook of GKE injects the same values as the variables of this project's own JobSets."""

from typing import Any

import pytest

from infra.layers.queue.jobs.jobset import Job
from infra.layers.queue.kueue import Team
from rehearsal.kubernetes.node.webhook import injected
from tests.rehearsal.kubernetes.lab import HOSTS, INSIDE, MACHINE, Lab

TEAM = Team("webhook", "webhook")
# Each worker's place as both have it; then every name that it was given, until all of them resolve.
PRINT = """
echo "$JOB_SLICE $JOB_WORKER $JOB_COORDINATOR $TPU_WORKER_ID $TPU_WORKER_HOSTNAMES"
for name in $(echo "$TPU_WORKER_HOSTNAMES" | tr , ' '); do
  for _ in $(seq 100); do getent ahostsv4 "$name" >/dev/null && break; sleep 0.2; done
  echo "$name $(getent ahostsv4 "$name" | head -n 1 | cut -d ' ' -f 1)"
done
"""


@pytest.fixture(scope="module", name="queue")
def _queue(lab: Lab) -> Lab:
    INSIDE.submit(lab.queue, {"hook-0": {}, "hook-1": {}}, {TEAM: []}).result()
    return lab


def test_both_number_the_workers_alike_and_every_name_resolves_in_a_pod(queue: Lab) -> None:
    command = ["sh", "-c", f"{PRINT}sleep 5"]  # for the others to ask for its name
    work = Job("two", TEAM, MACHINE, command, topology="4x4", hosts=HOSTS, chips_per_host=4, slices=2)
    queue.submit(work)
    queue.until(lambda: queue.ended(work), "the job's end")
    assert queue.ended(work) == "Completed"
    pods = queue.api.list("v1", "Pod", TEAM.namespace)
    seen = set()
    for one_pod in pods:
        first, *names = queue.agent.log(TEAM.namespace, one_pod["metadata"]["name"], "worker").splitlines()
        slice_id, worker, coordinator, worker_id, hostnames = first.split(" ")
        assert worker_id == worker
        hosts = hostnames.split(",")
        assert hosts == [f"two-slice-{slice_id}-{number}.two" for number in range(HOSTS)]
        assert hosts[int(worker)] == f"{one_pod['spec']['hostname']}.{one_pod['spec']['subdomain']}"
        assert coordinator == "two-slice-0-0.two"
        assert slice_id != "0" or hosts[0] == coordinator
        addresses = dict(line.split(" ") for line in names)
        assert list(addresses) == hosts
        assert addresses[hosts[int(worker)]] == one_pod["status"]["podIP"]
        assert len({*addresses.values()}) == HOSTS
        seen.add((slice_id, worker))
    assert len(seen) == 2 * HOSTS


def job(**changes: Any) -> dict[str, Any]:
    chips = {"google.com/tpu": "4"}
    pod = {"subdomain": "a", "containers": [{"name": "one"}, {"name": "two", "resources": {"limits": chips}}]}
    spec = {"completionMode": "Indexed", "parallelism": 2, "template": {"spec": pod}, **changes}
    return {"metadata": {"name": "j"}, "spec": spec}


def test_only_containers_with_chips_get_variables_and_keep_their_own() -> None:
    (change,) = injected(job())
    assert change["path"] == "/spec/template/spec/containers/1/env"
    assert [work["name"] for work in change["value"]] == ["TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"]
    assert change["value"][1]["value"] == "j-0.a,j-1.a"
    mine = job()
    own = [{"name": "TPU_WORKER_ID", "value": "7"}]
    mine["spec"]["template"]["spec"]["containers"][1]["env"] = own
    (change,) = injected(mine)
    assert change["value"][0] == own[0]
    assert len(change["value"]) == 2


@pytest.mark.parametrize("changes", [
    {"completionMode": "NonIndexed"}, {"parallelism": 1},
    {"template": {"spec": {"containers": job()["spec"]["template"]["spec"]["containers"]}}},
])  # fmt: skip
def test_jobs_that_google_does_not_name_are_left_alone(changes: dict[str, Any]) -> None:
    assert injected(job(**changes)) == []

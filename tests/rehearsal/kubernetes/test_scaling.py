"""Jobs on pools without nodes: Google refuses for a while, then the slice comes, and goes when it is idle."""

import time
from typing import Any

import pytest

from infra.layers.queue import kueue, namespace
from infra.layers.queue.jobs.jobset import Job
from infra.layers.queue.kueue import Team, objects
from infra.layers.queue.namespace import Volumes
from rehearsal.cloud.control import ControlError
from rehearsal.kubernetes.plane.api import Object
from rehearsal.kubernetes.plane.autoscaler import Autoscaler
from tests.rehearsal.kubernetes.lab import HOSTS, INSIDE, MACHINE, Lab, output, pool

TEAM = Team("scaling", "scaling")
MACHINE_OF_4 = {"machineType": "ct6e-standard-4t"}
SCALES: dict[str, Any] = {
    "config": {**MACHINE_OF_4, "flexStart": True, "labels": {"tpu-provisioning": "flex-start"}},
    "status": "RUNNING",
    "autoscaling": {"enabled": True, "minNodeCount": 0, "maxNodeCount": HOSTS},
}  # fmt: skip
POOLS = {
    "flex-start": pool("flex-0", **SCALES),
    "queued": pool(
        "queued-0",
        **{
            **SCALES,
            "config": {
                **MACHINE_OF_4,
                "flexStart": True,
                "labels": {"tpu-provisioning": "queued", "cloud.google.com/gke-queued": "true"},
            },
            "queuedProvisioning": {"enabled": True},
        },
    ),
}
RATE = 600.0
"""Virtual seconds in a real one."""


class Google:
    """Makes a pool's nodes where it has chips: the part of the control socket that the autoscaler asks."""

    def __init__(self, lab: Lab):
        self.lab, self.refused, self.chips = lab, 0, False
        self.sizes = {body["name"]: 0 for body in POOLS.values()}

    def clusters(self, what: str, *, pool: str, zone: str, count: int) -> dict[str, Any]:
        assert (what, zone) == ("scale", "us-east5-b")
        name = pool.rpartition("/")[2]
        body = next(work for work in POOLS.values() if work["name"] == name)
        if count and not self.chips:
            self.refused += 1
            raise ControlError("Google Compute Engine does not have enough resources")
        if count:
            self.lab.add_pool(body, count)
        else:
            self.lab.lose(*(work for work in list(self.lab.agent.nodes) if f"-{name}-" in work))
        self.sizes[name] = count
        return {}

    def pools(self) -> list[Object]:
        return [{"body": work, "sizes": {"us-east5-b": self.sizes[work["name"]]}} for work in POOLS.values()]


@pytest.fixture(name="google")
def _google(lab: Lab) -> Google:
    def make() -> Google:
        known = [output(body["name"], provisioning=how, scales=True) for how, body in POOLS.items()]
        lab.api.apply_all(list(objects(known)), "tests")
        mine = namespace.objects(TEAM, [], "trainer", None, Volumes("bucket"))
        lab.api.apply_all(list(mine), "tests")
        return Google(lab)

    return INSIDE.submit(make).result()


@pytest.mark.parametrize("how", list(POOLS))
def test_a_slice_that_google_has_not_got_comes_later_and_goes_when_idle(
    google: Google, lab: Lab, how: str
) -> None:
    control: Any = google
    autoscaler = Autoscaler(control, lab.api, "projects/p/locations/us-east5/clusters/tpu")
    flavor = kueue.flavor(output("any", provisioning=how, scales=True))
    work = Job(
        f"on-{how}", TEAM, MACHINE, ["sleep", "2"], "4x4", HOSTS, 4, selector=flavor.labels, scales=True,
        queued_s=3600 if how == "queued" else None,
    )  # fmt: skip
    lab.submit(work)

    def looked(answer: Any) -> Any:
        autoscaler.look(google.pools(), RATE)
        return answer

    lab.until(lambda: looked(google.refused >= 2), "refusals")
    waiting = lab.pods(work)
    assert bool(waiting) is (how == "flex-start"), "a queued job has no pods until its nodes are there"
    requests = lab.api.list("autoscaling.x-k8s.io/v1", "ProvisioningRequest", TEAM.namespace)
    assert len(requests) == (how == "queued")
    google.chips, begun = True, time.monotonic()
    lab.until(lambda: looked(lab.ended(work) == "Completed"), "the job's end")
    print(f"{how}: completed {time.monotonic() - begun:.1f} s after there were chips")
    lab.remove(work)
    lab.until(lambda: looked(not any(google.sizes.values())), "the end of the idle slice")


def test_a_request_for_nodes_that_does_not_say_for_how_long_gets_none(google: Google, lab: Lab) -> None:
    control: Any = google
    google.chips = True
    autoscaler = Autoscaler(control, lab.api, "projects/p/locations/us-east5/clusters/tpu")
    flavor = kueue.flavor(output("any", provisioning="queued", scales=True))
    work = Job("endless", TEAM, MACHINE, ["sleep", "2"], "4x4", HOSTS, 4, selector=flavor.labels, scales=True)
    lab.submit(work)

    def failures() -> list[str]:
        autoscaler.look(google.pools(), RATE)
        requests = lab.api.list("autoscaling.x-k8s.io/v1", "ProvisioningRequest", TEAM.namespace)
        conditions = [
            item for request in requests for item in request.get("status", {}).get("conditions", ())
        ]
        return [item["message"] for item in conditions if item["type"] == "Failed"]

    lab.until(lambda: any("maxRunDurationSeconds" in text for text in failures()), "the failure")
    assert not any(google.sizes.values())
    lab.remove(work)

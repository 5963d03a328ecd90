"""A real control plane with Kueue and JobSet, in a network namespace that belongs to one thread.

Everything that talks to the cluster runs in that thread, or in threads and processes that it started:
`conftest.py` runs the tests of this folder in it.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infra.layers.queue import kueue, namespace
from infra.layers.queue.jobs.jobset import Job, jobset
from infra.layers.queue.kueue import Team
from infra.layers.queue.namespace import Volumes
from infra.layers.queue.ready import checks, denied_by_policy
from rehearsal.hosts import image
from rehearsal.kubernetes.errors import ApiServerError
from rehearsal.kubernetes.node.agent import Agent
from rehearsal.kubernetes.node.images import controllers
from rehearsal.kubernetes.node.sandbox import Image
from rehearsal.kubernetes.node.webhook import Webhook
from rehearsal.kubernetes.plane.api import Object, documents
from rehearsal.kubernetes.plane.control_plane import ControlPlane
from rehearsal.kubernetes.plane.nodes import nodes
from rehearsal.kubernetes.plane.programs import QUEUE, folder
from tests.limits import HANG_S

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
MACHINE = "rehearsal/machine"
"""The image whose files are this machine's, under those that make a Debian a rehearsed host."""
HOSTS = 4
JOBSET = ("jobset.x-k8s.io/v1alpha2", "JobSet")
WORKLOAD = ("kueue.x-k8s.io/v1beta2", "Workload")
V6E_16 = {"machineType": "ct6e-standard-4t", "spot": True, "labels": {"tpu-provisioning": "spot"}}


def _enter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for command in ("mount --make-rprivate /", "mount -t tmpfs tmpfs /run", "ip link set lo up"):
        subprocess.run(command.split(), check=True)


def inside() -> ThreadPoolExecutor:
    """A thread with a network namespace."""
    return ThreadPoolExecutor(max_workers=1, initializer=_enter)


INSIDE = inside()


def pool(name: str, **more: Any) -> Object:
    """A node pool with a v6e-16, as GKE's API has it."""
    place = {"locations": ["us-east5-b"], "placementPolicy": {"tpuTopology": "4x4"}}
    return {"name": name, "config": V6E_16, **place, **more}


def output(name: str, **more: Any) -> Object:
    """Return the pool as the gke layer exports it."""
    return {"name": name, "acceleratorType": "v6e-16", "topology": "4x4", "machineType": "ct6e-standard-4t",
            "hosts": HOSTS, "chips": 16, "zone": "us-east5-b", "provisioning": "spot", "scales": False,
            "provisioningLabel": more.get("provisioning", "spot"),
            "pricePerHour": 22.45, **more}  # fmt: skip


class Lab:
    """The cluster: `api` is its administrator's."""

    def __init__(
        self,
        place: Path,
        files: Sequence[str] = ("provisioningrequests", "jobset", "kueue"),
        images: Mapping[str, Image] = MappingProxyType({}),
    ):
        """`files`: manifests that are applied. `images`: what stands for other controllers."""
        self.control_plane = ControlPlane(place)
        self.control_plane.start()
        self.api = self.control_plane.api
        self.webhook = Webhook(self.control_plane)
        self.webhook.start()
        # In a file system of its own: overlayfs takes no layer that is part of another.
        rootfs = shutil.copytree(Path(image.__file__).with_name("rootfs"), "/run/host", dirs_exist_ok=True)
        machine = Image(root=Path("/"), layers=(Path(rootfs),))
        stand_ins = {**images, **controllers(), MACHINE: machine}
        self.agent = Agent(self.api, place / "agent", stand_ins)
        self.agent.start()
        self.add_pool(
            {"name": "cpu", "locations": ["us-east5-b"], "config": {"machineType": "n2-standard-4"}}, 3
        )
        begun = time.monotonic()
        for file in files:
            self.api.apply_all(documents((folder(QUEUE) / f"{file}.yaml").read_text()), "tests")
        self.until(lambda: all(
            item.get("status", {}).get("readyReplicas") for item in self.api.list("apps/v1", "Deployment")
        ), "Kueue and JobSet")  # fmt: skip
        self.began_s = self.control_plane.ready_s, time.monotonic() - begun

    def ready(self) -> None:
        """Wait until the controllers' webhooks answer."""

        def answer() -> bool:
            try:
                for path, resource in checks():
                    self.api.request("POST", path, resource, dryRun="All")
            except ApiServerError as error:
                if error.status < 500 and not denied_by_policy(str(error)):
                    raise
                return error.status < 500
            return True

        self.until(answer, "Kueue and JobSet")

    def close(self) -> None:
        self.agent.stop()
        self.webhook.stop()
        self.control_plane.stop()

    def add_pool(self, resource: Object, count: int = HOSTS) -> list[str]:
        """Make a pool's nodes; their names."""
        made = list(nodes("tpu", resource, count))
        self.agent.add(made)
        return [node["metadata"]["name"] for node in made]

    def lose(self, *names: str) -> None:
        """Machines that are gone: GKE takes the nodes of the whole slice away."""
        self.agent.lose(*names)
        for name in names:
            self.api.delete(self.api.place("v1", "Node", name=name))

    def queue(self, pools: Mapping[str, Object], teams: Mapping[Team, Sequence[str]]) -> None:
        """Make pools' nodes, and the queue's objects for them and for teams with their members.

        `pools`: by name, what the gke layer exports of each besides.
        """
        for name in pools:
            self.add_pool(pool(name))
        exported = [output(name, **more) for name, more in pools.items()]
        self.api.apply_all(list(kueue.objects(exported)), "tests")
        for team, members in teams.items():
            objects = namespace.objects(team, members, "trainer", None, Volumes("bucket"))
            self.api.apply_all(list(objects), "tests")

    # Jobs

    def submit(self, job: Job) -> None:
        """Create the job's JobSet."""
        self.api.create(jobset(job))

    def status(self, job: Job) -> Object:
        """Return the status of the job's JobSet."""
        answer = self.api.get(*JOBSET, job.name, job.team.namespace)
        assert answer is not None
        return dict(answer.get("status", {}))

    def ended(self, job: Job) -> str:
        """Return the terminal state: Completed, Failed, or empty."""
        return str(self.status(job).get("terminalState", ""))

    def pods(self, job: Job, phase: str = "") -> list[Object]:
        """Return the job's pods that aren't being deleted, in a phase or in any."""
        label = f"jobset.sigs.k8s.io/jobset-name={job.name}"
        pods = self.api.list("v1", "Pod", job.team.namespace, labelSelector=label)
        return [
            pod
            for pod in pods
            if phase in ("", pod["status"].get("phase")) and "deletionTimestamp" not in pod["metadata"]
        ]

    def running(self, job: Job) -> bool:
        """Return True if all pods of the job run, a moment later: their shells have set their traps."""
        if len(self.pods(job, "Running")) < job.hosts * job.slices:
            return False
        time.sleep(0.2)
        return True

    def remove(self, *jobs: Job) -> None:
        """Delete jobs, and wait for the end of their pods."""
        for job in jobs:
            self.api.delete(self.api.place(*JOBSET, job.team.namespace, job.name))
        for job in jobs:
            label = f"jobset.sigs.k8s.io/jobset-name={job.name}"
            self.until(
                lambda job=job, label=label: (
                    not self.api.list(  # type: ignore[misc]
                        "v1", "Pod", job.team.namespace, labelSelector=label
                    )
                ),
                f"the end of {job.name}",
            )

    def until(self, is_so: Callable[[], Any], what: str, seconds: float = HANG_S) -> Any:
        """Wait for something; how long that took is its second value where it is a pair."""
        begun = time.monotonic()
        while not (answer := is_so()):
            assert time.monotonic() - begun < seconds, f"{what}: not within {seconds} s\n{self.state()}"
            time.sleep(0.05)
        return answer

    def state(self) -> str:
        """Pods, workloads and JobSets, for a message."""
        lines = []
        for version, kind in (("v1", "Pod"), WORKLOAD, JOBSET):
            for resource in self.api.list(version, kind):
                status = resource.get("status", {})
                messages = [condition.get("message") for condition in status.get("conditions", ())]
                words = (
                    kind,
                    resource["metadata"]["name"],
                    resource["spec"].get("nodeName"),
                    status.get("phase"),
                    messages,
                )
                lines.append(" ".join(map(str, words)))
        return "\n".join(lines)

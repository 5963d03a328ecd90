"""A real control plane with Kueue and JobSet, in a network namespace that belongs to one thread.

Everything that talks to the cluster runs in that thread, or in threads and processes that it started:
`conftest.py` runs the tests of this folder in it.
"""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infra.layers.queue.ready import checks
from rehearsal.kubernetes.errors import ApiError
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
"""The image whose files are this machine's."""
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
    """That pool, as the gke layer exports it."""
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
        stand_ins = {**images, **controllers(), MACHINE: Image(root=Path("/"))}
        self.agent = Agent(self.api, place / "agent", stand_ins)
        self.agent.start()
        self.add_pool(
            {"name": "cpu", "locations": ["us-east5-b"], "config": {"machineType": "n2-standard-4"}}, 3
        )
        begun = time.monotonic()
        for file in files:
            self.api.apply_all(documents((folder(QUEUE) / f"{file}.yaml").read_text()), "tests")
        self.until(lambda: all(
            one.get("status", {}).get("readyReplicas") for one in self.api.list("apps/v1", "Deployment")
        ), "Kueue and JobSet", 180)  # fmt: skip
        self.began_s = self.control_plane.ready_s, time.monotonic() - begun

    def ready(self) -> None:
        """Wait until the controllers' webhooks answer."""

        def answer() -> bool:
            try:
                for path, one in checks():
                    self.api.request("POST", path, one, dryRun="All")
            except ApiError as error:
                if error.status < 500:
                    raise
                return False
            return True

        self.until(answer, "Kueue and JobSet", 180)

    def close(self) -> None:
        self.agent.stop()
        self.webhook.stop()
        self.control_plane.stop()

    def add_pool(self, one: Object, count: int = HOSTS) -> list[str]:
        """Make a pool's nodes; their names."""
        made = list(nodes("tpu", one, count))
        self.agent.add(made)
        return [node["metadata"]["name"] for node in made]

    def preempt(self, *names: str) -> None:
        """Machines with notice of their end."""
        self.agent.shut_down(*names)
        self.lose(*names, notice=True)

    def lose(self, *names: str, notice: bool = False) -> None:
        """Machines that are gone: GKE takes the nodes of the whole slice away."""
        if not notice:
            self.agent.lose(*names)
        for name in names:
            self.api.delete(self.api.place("v1", "Node", name=name))

    def until(self, is_so: Callable[[], Any], what: str, seconds: float = HANG_S) -> Any:
        """Wait for something; how long that took is its second value where it is a pair."""
        begun = time.monotonic()
        while not (found := is_so()):
            assert time.monotonic() - begun < seconds, f"{what}: not within {seconds} s\n{self.state()}"
            time.sleep(0.05)
        return found

    def state(self) -> str:
        """Pods, workloads and JobSets, for a message."""
        lines = []
        for version, kind in (("v1", "Pod"), WORKLOAD, JOBSET):
            for one in self.api.list(version, kind):
                status = one.get("status", {})
                messages = [condition.get("message") for condition in status.get("conditions", ())]
                words = (
                    kind,
                    one["metadata"]["name"],
                    one["spec"].get("nodeName"),
                    status.get("phase"),
                    messages,
                )
                lines.append(" ".join(map(str, words)))
        return "\n".join(lines)

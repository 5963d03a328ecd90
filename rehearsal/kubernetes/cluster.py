"""A cluster of the emulated GKE API: a control plane, and nodes for its pools."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rehearsal.authority import Pair
from rehearsal.cloud.control import Control, ControlError
from rehearsal.kubernetes.node.agent import Agent
from rehearsal.kubernetes.node.reviews import Reviews
from rehearsal.kubernetes.node.sandbox import Image
from rehearsal.kubernetes.node.surroundings import Surroundings
from rehearsal.kubernetes.node.webhook import Webhook
from rehearsal.kubernetes.plane.api import Object, documents
from rehearsal.kubernetes.plane.autoscaler import Autoscaler
from rehearsal.kubernetes.plane.control_plane import ADDRESS, ControlPlane
from rehearsal.kubernetes.plane.nodes import nodes
from rehearsal.kubernetes.plane.programs import QUEUE, folder

# Statuses of a pool whose machines run.
_UP = ("RUNNING", "RUNNING_WITH_ERROR", "RECONCILING")
_POOL = "cloud.google.com/gke-nodepool"
_IDENTITIES = "GKE_METADATA"
_NOTICE_S = 15.0  # of the 30 that a machine has, kubelet gives pods half


class Cluster:
    """Comes up with `start`, has its pools' nodes after each `follow`, and is gone after `stop`."""

    def __init__(
        self,
        control: Control,
        described: Object,
        folder: Path,
        public: Pair,
        images: Mapping[str, Image],
        around: Surroundings,
    ):
        """Create a cluster.

        `described`: as the control socket lists it. `public`: the certificate of DNS endpoints.

        `around`: what pods find of the world, but who they are, which is registered here.
        """
        self._control, self._body = control, described["body"]
        self._pools: dict[str, Object] = {}
        self._around = replace(around, joined=self._joined, left=self._left, disk=self._disk, pull=self._pull)
        self.name: str = described["name"]
        self.endpoint: str = described["body"]["controlPlaneEndpointsConfig"]["dnsEndpointConfig"]["endpoint"]
        self._reviews = Reviews(control, self.name)
        self.control_plane = ControlPlane(folder, public, self._reviews.url)
        self._folder, self._images = folder, images
        self._agent: Agent | None = None
        self._webhook: Webhook | None = None
        self._ending: set[str] = set()

    def start(self) -> None:
        """Start the cluster, and return when the API server answers. Raises KubernetesError."""
        self._reviews.start()
        self.control_plane.start()
        # GKE brings this kind along; Kueue looks for it when it starts.
        crd = (folder(QUEUE) / "provisioningrequests.yaml").read_text()
        self.control_plane.api.apply_all(documents(crd), "gke")
        self._webhook = Webhook(self.control_plane)
        self._webhook.start()
        self._agent = Agent(self.control_plane.api, self._folder / "agent", self._images, self._around)
        self._agent.start()
        self._autoscaler = Autoscaler(self._control, self.control_plane.api, self.name)

    def stop(self) -> None:
        """End pods, control plane and webhooks."""
        if self._agent:
            self._agent.stop()
        if self._webhook:
            self._webhook.stop()
        self.control_plane.stop()
        self._reviews.stop()

    def follow(self, described: Object, rate: float) -> None:
        """Add the nodes that pools have by now, take away those that they don't, and scale pools.

        `described`: the cluster as it is by now. `rate`: virtual seconds in a real one.
        """
        assert self._agent is not None
        self._body, pools = described["body"], described["pools"]
        self._pools = {pool["body"]["name"]: pool["body"] for pool in pools}
        due, how = {}, {}
        for pool in pools:
            body = pool["body"]
            for zone, count in pool["sizes"].items():
                for node in nodes(self.name.rpartition("/")[2], body, count, zone):
                    how[node["metadata"]["name"]] = pool["lost"]
                    if body["status"] in _UP and not pool["lost"]:
                        due[node["metadata"]["name"]] = node
        present = set(self._agent.nodes)
        self._agent.add([node for name, node in due.items() if name not in present | self._ending])
        if gone := sorted(present - due.keys() - self._ending):
            self._ending |= set(gone)
            at_once = [name for name in gone if how.get(name) == "power-loss"]
            threading.Thread(target=self._end, args=(at_once, sorted(set(gone) - set(at_once)))).start()
        self._autoscaler.look(pools, rate)

    def nodes(self) -> dict[str, int]:
        """Return the number of nodes of each pool by the API server."""
        counts = self.control_plane.api.list("v1", "Node")
        return dict(Counter(node["metadata"]["labels"].get(_POOL, "") for node in counts))

    def _end(self, lost: Sequence[str], leaving: Sequence[str]) -> None:
        """Machines that are lost, or end with notice; GKE removes their nodes then."""
        assert self._agent is not None
        self._agent.lose(*lost)
        self._agent.shut_down(*leaving, grace_s=_NOTICE_S)
        api = self.control_plane.api
        for name in (*lost, *leaving):
            api.delete(api.place("v1", "Node", name=name))
            self._ending.discard(name)

    # Pods, to Google

    def _joined(self, pod: Object, address: str) -> None:
        """Let the metadata server know the pod: its account, or its node's without Workload Identity."""
        assert self._agent is not None
        node, spec, namespace = pod["spec"]["nodeName"], pod["spec"], pod["metadata"]["namespace"]
        labels = self._agent.nodes[node]["metadata"]["labels"]
        config = self._pools[labels[_POOL]]["config"]
        mode = (config.get("workloadMetadataConfig") or {}).get("mode", _IDENTITIES)
        workload_pool = (self._body.get("workloadIdentityConfig") or {}).get("workloadPool", "")
        name = spec.get("serviceAccountName", "default")
        account = self.control_plane.api.get("v1", "ServiceAccount", name, namespace) or {"metadata": {}}
        annotations = account["metadata"].get("annotations") or {}
        self._control.clusters(
            "join", address=address, node=node, namespace=namespace, account=name,
            zone=labels["topology.kubernetes.io/zone"], machine_type=config["machineType"],
            cluster=self.name.rpartition("/")[2], location=self.name.split("/")[3],
            workload_pool=workload_pool if mode == _IDENTITIES else "",
            google_account=annotations.get("iam.gke.io/gcp-service-account", ""),
            node_account=config.get("serviceAccount", ""),
        )  # fmt: skip

    def _pull(self, node: str, image: str) -> str:
        assert self._agent is not None
        pool = self._agent.nodes[node]["metadata"]["labels"][_POOL]
        return str(self._control.clusters("pull", cluster=self.name, pool=pool, image=image)["refused"])

    def _disk(self, id_: str) -> str:
        return str(self._control.clusters("disk", id=id_)["image"])

    def _left(self, address: str) -> None:
        with contextlib.suppress(ControlError):  # the world ends
            self._control.clusters("leave", address=address)


def with_name(hosts: str, name: str) -> str:
    """Return a hosts file in which the API server has this name; without a name, only the other lines."""
    lines = [line for line in hosts.splitlines() if line.partition(" ")[0] != ADDRESS]
    return "\n".join([*lines, *([f"{ADDRESS} {name}"] if name else [])]) + "\n"

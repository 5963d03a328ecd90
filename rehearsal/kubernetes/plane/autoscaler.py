"""Imitates the cluster autoscaler, as far as node pools that scale to a slice and back need it.

A pool gets all its nodes at once when pods for it can't be scheduled, and loses them when none has used them
for a while. https://cloud.google.com/kubernetes-engine/docs/concepts/cluster-autoscaler
A queued pool gets them for a ProvisioningRequest instead, which waits until there are chips.
https://cloud.google.com/kubernetes-engine/docs/how-to/provisioningrequest
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from google_facts import gke_pools
from rehearsal.cloud.control import Control, ControlError
from rehearsal.kubernetes.plane.api import Api, Object, now
from rehearsal.kubernetes.plane.nodes import nodes

# GKE removes nodes that weren't needed for 10 minutes, and looks again after one that got none.
_IDLE_S, _AGAIN_S = 600.0, 60.0
_EVERY_S = 1.0
# Of a request for TPUs, by Google's blueprint; that one without them fails, and how, is assumed.
_REQUIRED = (gke_pools.TOPOLOGY, gke_pools.DURATION)
_REQUEST = ("autoscaling.x-k8s.io/v1", "ProvisioningRequest")


class Autoscaler:
    """Looks at pending pods and idle pools; `rate` is the number of virtual seconds in a real one."""

    def __init__(self, control: Control, api: Api, cluster: str):
        """`cluster`: its full name."""
        self._control, self._api, self._cluster = control, api, cluster
        self._idle_since: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._requested: dict[str, list[Object]] = {}
        self._next = 0.0

    def look(self, pools: Sequence[Object], rate: float) -> None:
        """Scale what scales; at most once a second."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY_S
        scaled = [pool for pool in pools if (pool["body"].get("autoscaling") or {}).get("enabled")]
        if not scaled:
            return
        pods = self._api.list("v1", "Pod")
        pending = [pod for pod in pods if _cannot_be_scheduled(pod)]
        used = {
            pod["spec"].get("nodeName")
            for pod in pods
            if pod["status"].get("phase") in ("Pending", "Running")
        }
        running = [pool for pool in scaled if pool["body"]["status"] == "RUNNING"]
        queued = [pool for pool in running if (pool["body"].get("queuedProvisioning") or {}).get("enabled")]
        if queued:
            self._provision(queued, rate)
        for pool in running:
            if any(pool["sizes"].values()):
                self._shrink(pool, used, rate)
            elif pool in queued:
                continue
            elif fitting := [pod for pod in pending if _fits(pod, next(self._nodes(pool, 1)))]:
                self._grow(pool, fitting, rate)
                pending = [pod for pod in pending if pod not in fitting]

    def _provision(self, queued: Sequence[Object], rate: float) -> None:
        """Give each request the empty pools that it needs, all or none; record when their nodes exist."""
        existing = {node["metadata"]["name"] for node in self._api.list("v1", "Node")}
        taken: list[Object] = []
        for request in self._api.list(*_REQUEST):
            known = {
                condition["type"]: condition["status"]
                for condition in request.get("status", {}).get("conditions", ())
            }
            if request["spec"]["provisioningClassName"] != gke_pools.CLASS or "True" in (
                known.get("Provisioned"),
                known.get("Failed"),
            ):
                continue
            name = request["metadata"]["name"]
            parameters = request["spec"].get("parameters") or {}
            if lacking := [key for key in _REQUIRED if key not in parameters]:
                text = f"Provisioning Request lacks parameters: {', '.join(lacking)}."
                self._answer(request, "Failed", text)
            elif not known:
                self._answer(request, "Accepted", "ProvisioningRequest was successfully queued.")
            elif pools := self._requested.get(name):
                nodes_due = {
                    node["metadata"]["name"]
                    for pool in pools
                    for node in self._nodes(pool, _most(pool["body"]))
                }
                if nodes_due <= existing:
                    self._answer(request, "Provisioned", "Provisioning Request was successfully provisioned.")
            elif time.monotonic() >= self._not_before.get(name, 0.0):
                free = [pool for pool in queued if pool not in taken and not any(pool["sizes"].values())]
                pools = self._pools_for(request, free)
                taken += pools
                try:
                    for pool in pools:
                        self._scale(pool, pool["body"]["locations"][0], _most(pool["body"]))
                    self._requested[name] = pools
                except ControlError:  # no chips: it waits
                    self._not_before[name] = time.monotonic() + _AGAIN_S / rate

    def _pools_for(self, request: Object, free: Sequence[Object]) -> list[Object]:
        """Pools whose nodes are as many as the pods that the request is for; none where there are too few."""
        pools: list[Object] = []
        topology = request["spec"]["parameters"][gke_pools.TOPOLOGY]
        for set_ in request["spec"]["podSets"]:
            template = self._api.get(
                "v1", "PodTemplate", set_["podTemplateRef"]["name"], request["metadata"]["namespace"]
            )
            left = int(set_["count"])
            for pool in free:
                node = next(self._nodes(pool, 1))
                shape = str(node["metadata"]["labels"].get("cloud.google.com/gke-tpu-topology", ""))
                fits = template and _fits(template["template"], node) and shape == topology
                if left > 0 and fits and pool not in pools:
                    pools.append(pool)
                    left -= _most(pool["body"])
            if left > 0:
                return []
        return pools

    def _answer(self, request: Object, kind: str, message: str) -> None:
        conditions = [
            *request.get("status", {}).get("conditions", ()),
            {"type": kind, "status": "True", "reason": kind, "message": message, "lastTransitionTime": now()},
        ]
        details = {"ResizeRequestName": request["metadata"]["name"]} if kind == "Provisioned" else {}
        status = {"conditions": conditions, "provisioningClassDetails": details}
        self._api.patch_status(self._api.path(request), status, custom=True)

    def _grow(self, pool: Object, pods: Sequence[Object], rate: float) -> None:
        name, most = pool["body"]["name"], _most(pool["body"])
        if time.monotonic() < self._not_before.get(name, 0.0):
            return
        zone = pool["body"]["locations"][0]
        try:
            self._scale(pool, zone, most)
        except ControlError as refused:
            self._not_before[name] = time.monotonic() + _AGAIN_S / rate
            text = f"Node scale up in zones {zone} associated with this pod failed: {refused}"
            self._record(pods, "Warning", "FailedScaleUp", f"{text}. Pod is at risk of not being scheduled.")
            return
        self._idle_since.pop(name, None)
        self._record(
            pods,
            "Normal",
            "TriggeredScaleUp",
            f"pod triggered scale-up: [{{{name} 0->{most} (max: {most})}}]",
        )

    def _shrink(self, pool: Object, used: set[str | None], rate: float) -> None:
        name = pool["body"]["name"]
        names = {node["metadata"]["name"] for node in self._nodes(pool, _most(pool["body"]))}
        since = self._idle_since.setdefault(name, time.monotonic())
        if names & used:
            del self._idle_since[name]
        elif (time.monotonic() - since) * rate > _IDLE_S:
            for zone in pool["sizes"]:
                self._scale(pool, zone, int(pool["body"]["autoscaling"].get("minNodeCount", 0)))
            del self._idle_since[name]

    def _nodes(self, pool: Object, count: int) -> Iterator[Object]:
        return nodes(self._cluster.rpartition("/")[2], pool["body"], count)

    def _scale(self, pool: Object, zone: str, count: int) -> None:
        name = f"{self._cluster}/nodePools/{pool['body']['name']}"
        self._control.clusters("scale", pool=name, zone=zone, count=count)

    def _record(self, pods: Sequence[Object], kind: str, reason: str, message: str) -> None:
        """Create an event for each pod."""
        for pod in pods:
            meta = pod["metadata"]
            about = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "namespace": meta["namespace"],
                     "uid": meta["uid"]}  # fmt: skip
            self._api.create({
                "apiVersion": "v1", "kind": "Event", "type": kind, "reason": reason, "message": message,
                "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
                "involvedObject": about, "source": {"component": "cluster-autoscaler"},
                "firstTimestamp": now(), "lastTimestamp": now(), "count": 1,
            })  # fmt: skip


def _most(pool: Mapping[str, Object]) -> int:
    scaling = pool["autoscaling"]
    return int(scaling.get("maxNodeCount") or scaling.get("totalMaxNodeCount") or 0)


def _cannot_be_scheduled(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(
        condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
        for condition in conditions
    )


def _fits(pod: Object, node: Object) -> bool:
    """Return True if the node meets the pod's requirements: labels, tolerated taints, chips."""
    spec, labels = pod["spec"], node["metadata"]["labels"]
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution", {}
    )
    terms = affinity.get("nodeSelectorTerms", ())
    if terms and not any(
        all(_matches(expression, labels) for expression in term.get("matchExpressions", ())) for term in terms
    ):
        return False
    tolerated = [toleration.get("key") for toleration in spec.get("tolerations", ())]
    if any(
        taint["key"] not in tolerated and None not in tolerated for taint in node["spec"].get("taints", ())
    ):
        return False
    chips = sum(
        int((container.get("resources", {}).get("limits") or {}).get(_CHIPS, 0))
        for container in spec["containers"]
    )
    return chips <= int(node["status"]["capacity"].get(_CHIPS, 0))


_CHIPS = "google.com/tpu"


def _matches(expression: Object, labels: Mapping[str, str]) -> bool:
    value, operator = labels.get(expression["key"]), str(expression["operator"])
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    return bool(value in expression.get("values", ())) == (operator == "In")

"""The nodes that GKE makes of a node pool, as Kubernetes shows them.

Labels and taints: https://cloud.google.com/kubernetes-engine/docs/how-to/tpus. Sizes of machines:
https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, as known; not read again on 2026-11-24.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from google_facts import gke_pools
from rehearsal.kubernetes.plane.api import Object

_TPU_MACHINES = {  # chips, grid of one machine, vCPUs, memory
    "ct6e-standard-1t": (1, "1x1", 44, "176Gi"),
    "ct6e-standard-4t": (4, "2x2", 180, "720Gi"),
    "ct6e-standard-8t": (8, "2x4", 180, "1440Gi"),
}
_CPU_MACHINE = (4, "16Gi")
_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "PREFER_NO_SCHEDULE": "PreferNoSchedule", "NO_EXECUTE": "NoExecute"}
_TPU_TAINT = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}


def nodes(cluster: str, pool: Object, count: int, zone: str = "") -> Iterator[Object]:
    """`count` nodes of a pool, as the API has it (`NodePool`), in a zone: its first one without another."""
    config, zone = pool["config"], zone or pool["locations"][0]
    suffix = hashlib.sha256(f"{cluster}/{pool['name']}/{zone}".encode()).hexdigest()[:8]
    tpu = _TPU_MACHINES.get(config["machineType"])
    capacity: dict[str, Any] = {"pods": pool.get("maxPodsConstraint", {}).get("maxPodsPerNode", "110")}
    labels = {
        "cloud.google.com/gke-nodepool": pool["name"],
        "node.kubernetes.io/instance-type": config["machineType"],
        "topology.kubernetes.io/region": zone.rpartition("-")[0],
        "topology.kubernetes.io/zone": zone,
        "topology.gke.io/zone": zone,  # the disks' CSI driver's
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        **config.get("labels", {}),
    }
    for switch in ("spot", "flexStart"):
        if config.get(switch):
            labels[f"cloud.google.com/gke-{'flex-start' if switch == 'flexStart' else switch}"] = "true"
    taints = [
        {"key": taint["key"], "value": taint.get("value", ""), "effect": _EFFECTS[taint["effect"]]}
        for taint in config.get("taints", ())
    ]
    if (pool.get("queuedProvisioning") or {}).get("enabled"):
        taints.append(
            {"key": gke_pools.QUEUED_LABEL, "value": gke_pools.QUEUED_VALUE, "effect": "NoSchedule"}
        )
    if tpu:
        chips, grid, cpus, memory = tpu
        labels |= {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            "cloud.google.com/gke-tpu-topology": (pool.get("placementPolicy") or {}).get("tpuTopology")
            or grid,
            "cloud.google.com/gke-accelerator-count": str(chips),
        }
        capacity |= {"google.com/tpu": str(chips), "cpu": str(cpus), "memory": memory}
        if _TPU_TAINT not in taints:
            taints.append(_TPU_TAINT)
    else:
        capacity |= {"cpu": str(_CPU_MACHINE[0]), "memory": _CPU_MACHINE[1]}
    for number in range(count):
        name = f"gke-{cluster}-{pool['name']}-{suffix}-{number}"
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}},
            "spec": {
                "providerID": f"gce://rehearsal/{zone}/{name}",
                **({"taints": taints} if taints else {}),
            },
            "status": {"capacity": capacity, "allocatable": capacity},
        }

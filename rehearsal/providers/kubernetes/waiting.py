"""Readiness of applied objects, as the official provider waits for it (await/awaiters.go)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.plane.api import Api, Object


class FailedError(KubernetesError):
    """An object that won't become ready any more."""


def annotation(manifest: Mapping[str, Any], name: str) -> str:
    """Return an annotation's value; empty without it."""
    meta = manifest.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, Mapping) else None
    value = notes.get(name) if isinstance(notes, Mapping) else None
    return value if isinstance(value, str) else ""


def unsupported(manifest: Mapping[str, Any]) -> str:
    """Return the reason why readiness of an object can't be determined; empty if it can."""
    if annotation(manifest, "pulumi.com/skipAwait") == "true":
        return ""
    kind = _key(manifest)
    if kind in _UNKNOWN or manifest.get("type") == "kubernetes.io/service-account-token":
        return f"the stand-in doesn't know when a {kind[1]} is ready; pulumi.com/skipAwait does without"
    return ""


def missing(api: Api, manifest: Object) -> list[str]:
    """Return the object's missing conditions."""
    if annotation(manifest, "pulumi.com/skipAwait") == "true":
        return []
    check = _CHECKS.get(_key(manifest))
    return check(api, manifest) if check else []


def condition(manifest: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition of an object's status; empty without it."""
    conditions = manifest.get("status", {}).get("conditions") or ()
    return next((dict(entry) for entry in conditions if entry["type"] == kind), {})


def _key(manifest: Mapping[str, Any]) -> tuple[str, str]:
    return str(manifest.get("apiVersion")), str(manifest.get("kind"))


def _observed(manifest: Object) -> bool:
    return bool(
        manifest.get("status", {}).get("observedGeneration", 0) >= manifest["metadata"].get("generation", 0)
    )


def _deployment(api: Api, manifest: Object) -> list[str]:
    desired, status = manifest["spec"].get("replicas", 1), manifest.get("status", {})
    available, progressing = condition(manifest, "Available"), condition(manifest, "Progressing")
    rolled_out = progressing.get("reason") == "NewReplicaSetAvailable" or not desired
    updated = min(status.get("updatedReplicas", 0), status.get("availableReplicas", 0))
    if _observed(manifest) and available.get("status") == "True" and rolled_out and updated >= desired:
        return []
    messages = [f"[{entry['reason']}] {entry['message']}" for entry in (available, progressing)
                if entry.get("status") == "False"]  # fmt: skip
    return [f"{updated} of {desired} replicas are updated and available", *messages, *_pods(api, manifest)]


def _service(api: Api, manifest: Object) -> list[str]:
    """Return the missing condition of a Service; the official one also lets endpoints settle for 10
    seconds.
    """
    spec, meta = manifest["spec"], manifest["metadata"]
    lacks = []
    if spec.get("type") == "LoadBalancer" and not manifest.get("status", {}).get("loadBalancer", {}).get(
        "ingress"
    ):
        lacks = ["Service was not allocated an IP address; does your cloud provider support this?"]
    if spec.get("type") == "ExternalName" or spec.get("clusterIP") == "None" or not spec.get("selector"):
        return lacks
    endpoints = api.get("v1", "Endpoints", meta["name"], meta["namespace"])
    if endpoints is None or any(subset.get("notReadyAddresses") for subset in endpoints.get("subsets") or ()):
        lacks.append(
            "Selected Pods may not be ready, or field '.spec.selector' may not match labels on any Pods"
        )
    return lacks


_CHECKS: dict[tuple[str, str], Callable[[Api, Object], list[str]]] = {
    ("apps/v1", "Deployment"): _deployment,
    ("v1", "Service"): _service,
}
_UNKNOWN = {
    *(("v1", kind) for kind in ("Pod", "PersistentVolume", "PersistentVolumeClaim", "ReplicationController")),
    *(("apps/v1", kind) for kind in ("StatefulSet", "DaemonSet")),
    ("v1", "ResourceQuota"),
    ("batch/v1", "Job"),
    ("networking.k8s.io/v1", "Ingress"),
}


def _pods(api: Api, manifest: Object) -> list[str]:
    """Return the pods that aren't ready, with the reason."""
    labels = manifest["spec"].get("selector", {}).get("matchLabels", {})
    if not labels:
        return []
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    lines = []
    for pod in api.list("v1", "Pod", manifest["metadata"]["namespace"], labelSelector=selector):
        if condition(pod, "Ready").get("status") == "True":
            continue
        reasons = [condition(pod, "PodScheduled").get("message", "")]
        for status in pod.get("status", {}).get("containerStatuses") or ():
            state = {**status.get("lastState", {}), **status.get("state", {})}
            reasons += [f"{status['name']}: {what.get('reason', '')} {what.get('message', '')}".strip()
                        for name, what in state.items() if name != "running"]  # fmt: skip
        why = "; ".join(filter(None, reasons)) or str(pod.get("status", {}).get("phase"))
        lines.append(f"[Pod {pod['metadata']['name']}]: {why}")
    return lines

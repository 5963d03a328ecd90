"""Readiness of applied objects, as the official provider waits for it (await/awaiters.go)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.plane.api import Api, Object

_WAIT_FOR = "pulumi.com/waitFor"


class FailedError(KubernetesError):
    """An object that won't become ready any more."""


def annotation(one: Mapping[str, Any], name: str) -> str:
    """Return an annotation's value; empty without it."""
    meta = one.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, Mapping) else None
    value = notes.get(name) if isinstance(notes, Mapping) else None
    return value if isinstance(value, str) else ""


def unsupported(one: Mapping[str, Any]) -> str:
    """Return the reason why readiness of an object can't be determined; empty if it can."""
    if annotation(one, "pulumi.com/skipAwait") == "true":
        return ""
    if not all(each.startswith("condition=") for each in _wait_for(one)):
        return f"{_WAIT_FOR}: the stand-in knows `condition=TYPE` and `condition=TYPE=STATUS` only"
    kind = _key(one)
    if not _wait_for(one) and (kind in _UNKNOWN or one.get("type") == "kubernetes.io/service-account-token"):
        return f"the stand-in doesn't know when a {kind[1]} is ready; pulumi.com/skipAwait does without"
    return ""


def missing(api: Api, one: Object) -> list[str]:
    """Return the object's missing condition; FailedError if it can never be met."""
    if annotation(one, "pulumi.com/skipAwait") == "true":
        return []
    if desired := _wait_for(one):
        pairs = [each.removeprefix("condition=").partition("=") for each in desired]
        return [f"no condition {kind}={status or 'True'}" for kind, _, status in pairs
                if condition(one, kind).get("status") != (status or "True")]  # fmt: skip
    check = _CHECKS.get(_key(one))
    return check(api, one) if check else []


def condition(one: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition of an object's status; empty without it."""
    conditions = one.get("status", {}).get("conditions") or ()
    return next((dict(each) for each in conditions if each["type"] == kind), {})


def _key(one: Mapping[str, Any]) -> tuple[str, str]:
    return str(one.get("apiVersion")), str(one.get("kind"))


def _wait_for(one: Mapping[str, Any]) -> list[str]:
    if not (text := annotation(one, _WAIT_FOR)):
        return []
    return [str(each) for each in json.loads(text)] if text.startswith("[") else [text]


def _observed(one: Object) -> bool:
    return bool(one.get("status", {}).get("observedGeneration", 0) >= one["metadata"].get("generation", 0))


def _deployment(api: Api, one: Object) -> list[str]:
    desired, status = one["spec"].get("replicas", 1), one.get("status", {})
    available, progressing = condition(one, "Available"), condition(one, "Progressing")
    rolled_out = progressing.get("reason") == "NewReplicaSetAvailable" or not desired
    updated = min(status.get("updatedReplicas", 0), status.get("availableReplicas", 0))
    if _observed(one) and available.get("status") == "True" and rolled_out and updated >= desired:
        return []
    messages = [f"[{each['reason']}] {each['message']}" for each in (available, progressing)
                if each.get("status") == "False"]  # fmt: skip
    return [f"{updated} of {desired} replicas are updated and available", *messages, *_pods(api, one)]


def _job(api: Api, one: Object) -> list[str]:
    failed = condition(one, "Failed")
    if failed.get("status") == "True":
        raise FailedError(f"[{failed.get('reason')}] {failed.get('message')}")
    if condition(one, "Complete").get("status") == "True":
        return []
    return ["it isn't complete", *_pods(api, one)]


def _service(api: Api, one: Object) -> list[str]:
    """Return the missing condition of a Service; the official one also lets endpoints settle for 10
    seconds.
    """
    spec, meta = one["spec"], one["metadata"]
    lacks = []
    if spec.get("type") == "LoadBalancer" and not one.get("status", {}).get("loadBalancer", {}).get(
        "ingress"
    ):
        lacks = ["Service was not allocated an IP address; does your cloud provider support this?"]
    if spec.get("type") == "ExternalName" or spec.get("clusterIP") == "None" or not spec.get("selector"):
        return lacks
    endpoints = api.get("v1", "Endpoints", meta["name"], meta["namespace"])
    if endpoints is None or any(each.get("notReadyAddresses") for each in endpoints.get("subsets") or ()):
        lacks.append(
            "Selected Pods may not be ready, or field '.spec.selector' may not match labels on any Pods"
        )
    return lacks


_CHECKS: dict[tuple[str, str], Callable[[Api, Object], list[str]]] = {
    ("apps/v1", "Deployment"): _deployment,
    ("batch/v1", "Job"): _job,
    ("v1", "Service"): _service,
}
_UNKNOWN = {
    *(("v1", kind) for kind in ("Pod", "PersistentVolume", "PersistentVolumeClaim", "ReplicationController")),
    *(("apps/v1", kind) for kind in ("StatefulSet", "DaemonSet")),
    ("v1", "ResourceQuota"),
    ("networking.k8s.io/v1", "Ingress"),
}


def _pods(api: Api, one: Object) -> list[str]:
    """Return the pods that aren't ready, with the reason."""
    labels = one["spec"].get("selector", {}).get("matchLabels", {})
    if not labels:
        return []
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    lines = []
    for pod in api.list("v1", "Pod", one["metadata"]["namespace"], labelSelector=selector):
        if condition(pod, "Ready").get("status") == "True":
            continue
        reasons = [condition(pod, "PodScheduled").get("message", "")]
        for each in pod.get("status", {}).get("containerStatuses") or ():
            state = {**each.get("lastState", {}), **each.get("state", {})}
            reasons += [f"{each['name']}: {what.get('reason', '')} {what.get('message', '')}".strip()
                        for name, what in state.items() if name != "running"]  # fmt: skip
        why = "; ".join(filter(None, reasons)) or str(pod.get("status", {}).get("phase"))
        lines.append(f"[Pod {pod['metadata']['name']}]: {why}")
    return lines

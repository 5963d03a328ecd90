"""IAM permissions of requests to a cluster's API server.

https://cloud.google.com/kubernetes-engine/docs/reference/api-permissions
"""

from __future__ import annotations

from collections.abc import Iterator

CONNECT = "container.clusters.connect"
"""Permission to connect to a control plane by its DNS endpoint."""
_KINDS = {
    kind.lower(): kind
    for kind in (
        *("apiServices", "bindings", "certificateSigningRequests", "clusterRoleBindings", "clusterRoles"),
        *("componentStatuses", "configMaps", "controllerRevisions", "cronJobs", "csiDrivers", "csiNodes"),
        *("customResourceDefinitions", "daemonSets", "deployments", "endpointSlices", "endpoints", "events"),
        *("horizontalPodAutoscalers", "ingresses", "jobs", "leases", "limitRanges"),
        *("localSubjectAccessReviews", "mutatingWebhookConfigurations", "namespaces", "networkPolicies"),
        *("nodes", "persistentVolumeClaims", "persistentVolumes", "podDisruptionBudgets", "podTemplates"),
        *("pods", "priorityClasses", "replicaSets", "replicationControllers", "resourceQuotas"),
        *("roleBindings", "roles", "runtimeClasses", "secrets", "selfSubjectAccessReviews"),
        *("selfSubjectRulesReviews", "serviceAccounts", "services", "statefulSets", "storageClasses"),
        *("subjectAccessReviews", "tokenReviews", "validatingWebhookConfigurations", "volumeAttachments"),
    )
}
# Of kinds that have no permission of their own. That it stands for built-in ones that are newer than Google's
# list, too, is assumed: no page documents it.
_CUSTOM = "thirdPartyObjects"
_NEWER = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
_VERBS = {"watch": "list", "patch": "update", "deletecollection": "delete"}
_PLAIN = ("get", "list", "create", "update", "delete")
_SPECIAL = {  # (kind, subresource) → verb, for any method
    ("pods", "log"): "getLogs",
    ("pods", "exec"): "exec",
    ("pods", "attach"): "attach",
    ("pods", "portforward"): "portForward",
    ("pods", "eviction"): "evict",
    ("serviceAccounts", "token"): "createToken",
    ("namespaces", "finalize"): "finalize",
    ("certificateSigningRequests", "approval"): "approve",
    **{(kind, "proxy"): "proxy" for kind in ("nodes", "pods", "services")},
}
_OWN_VERBS = ("bind", "escalate")


def permission(group: str, resource: str, subresource: str, verb: str) -> str | None:
    """Return a request's permission (`container.pods.list`); None if RBAC alone decides."""
    kind = _KINDS.get(resource)
    if resource in _NEWER or ("." in group and not group.endswith(".k8s.io")):
        kind, subresource = _CUSTOM, ""
    if kind is None:
        return None
    if special := _SPECIAL.get((kind, subresource)):
        return f"container.{kind}.{special}"
    plain = _VERBS.get(verb, verb)
    if plain not in _PLAIN and not (plain in _OWN_VERBS and kind in ("clusterRoles", "roles")):
        return None
    if subresource in ("status", "scale") and plain in ("get", "update"):
        return f"container.{kind}.{plain}{subresource.capitalize()}"
    return None if subresource else f"container.{kind}.{plain}"


def permissions() -> Iterator[str]:
    """Yield every permission, the special ones included."""
    for kind in (*_KINDS.values(), _CUSTOM):
        yield from (f"container.{kind}.{verb}" for verb in _PLAIN)
    yield from (f"container.{kind}.{verb}" for (kind, _), verb in _SPECIAL.items())
    yield from (f"container.{kind}.{verb}" for kind in ("clusterRoles", "roles") for verb in _OWN_VERBS)
    yield CONNECT

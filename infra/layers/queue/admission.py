"""Admission policy of JobSets, whatever client sends them.

A ValidatingAdmissionPolicy: rules in CEL that the API server evaluates, without a webhook that could be down.
`tpu job submit` checks the same before; a manifest for kubectl is checked here alone.
https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.catalog import CATALOG, chips_of
from infra.layers.queue.kueue import PRIORITIES, TOPOLOGY_LABEL, TPU, Object, Team

NAME, PRIORITIES_NAME = "tpu-jobs", "tpu-priorities"
CLUSTER = "tpu-cluster"
"""Annotation of a JobSet: the cluster that its manifest was written for."""
_API = "admissionregistration.k8s.io/v1"
_QUEUE, _PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
_JOBSETS = {"apiGroups": ["jobset.x-k8s.io"], "apiVersions": ["*"], "resources": ["jobsets"]}
_WITH_CHIPS = f"has(c.resources) && has(c.resources.limits) && '{TPU}' in c.resources.limits"
_PODS = "template.spec.template.spec"
# A pod's chips are those of its containers, or of an initial one.
_CONTAINERS = f"(has(r.{_PODS}.initContainers) ? r.{_PODS}.initContainers : []) + r.{_PODS}.containers"
_ANY_WITH_CHIPS = f"({_CONTAINERS}).exists(c, {_WITH_CHIPS})"
_ACCOUNTS = ("serviceAccountName", "serviceAccount")
_DIGEST = "@sha256:[0-9a-f]{64}$"
# Pods without chips run on the controllers' nodes, which no queue rations.
_MOST_CPU_PODS = 4


def objects(
    pools: Sequence[Mapping[str, Any]], teams: Sequence[Team], cluster: str, account: str = "trainer"
) -> Iterator[Object]:
    """Yield the policy and what puts it into force.

    Args:
        pools: the output of the gke layer.
        teams: of the settings.
        cluster: its full name, `projects/…/clusters/…`.
        account: Kubernetes account that pods run as, in each team's namespace.
    """
    yield from _in_force(NAME, _policy(pools, teams, cluster, account))
    if limited := _limited(teams):
        yield from _in_force(PRIORITIES_NAME, _kept_priority(limited))


def _in_force(name: str, spec: Object) -> Iterator[Object]:
    """Yield a policy and its binding."""
    kind, about = "ValidatingAdmissionPolicy", {"name": name}
    yield {"apiVersion": _API, "kind": kind, "metadata": about, "spec": spec}
    yield {
        "apiVersion": _API, "kind": f"{kind}Binding", "metadata": about,
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }  # fmt: skip


def _limited(teams: Sequence[Team]) -> dict[str, list[str]]:
    """Return the priorities of teams that may not have all, by namespace."""
    return {team.namespace: list(team.priorities) for team in teams if len(team.priorities) < len(PRIORITIES)}


def _kept_priority(limited: Mapping[str, Sequence[str]]) -> Object:
    """Return a policy of updates: Kueue takes a job's new priority while it waits."""
    allowed = f"{_cel(limited)}[request.namespace]"
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{**_JOBSETS, "operations": ["UPDATE"]}]},
        "variables": [
            {"name": "priority", "expression": _label("object", _PRIORITY)},
            {"name": "before", "expression": _label("oldObject", _PRIORITY)},
        ],
        "validations": [
            {
                "expression": f"!(request.namespace in {_cel(sorted(limited))}) || variables.priority == "
                f"variables.before || variables.priority in {allowed}",
                "message": "this team may not use that priority",
                "messageExpression": f"'this team may use ' + {allowed}.join(' or ')",
            }
        ],
    }


def _label(of: str, key: str) -> str:
    """Return an expression of an object's label, 'none' where it has none."""
    labels = f"{of}.metadata.labels"
    return f"has({labels}) && '{key}' in {labels} ? string({labels}['{key}']) : 'none'"


def _policy(pools: Sequence[Mapping[str, Any]], teams: Sequence[Team], cluster: str, account: str) -> Object:
    variables = {
        # CEL's lists have elements of one type, so numbers are text here.
        "slices": (
            f"object.spec.replicatedJobs.filter(r, {_ANY_WITH_CHIPS}).map(r, {{"
            "'name': string(r.name), "
            f"'topology': has(r.{_PODS}.nodeSelector) && '{TOPOLOGY_LABEL}' in r.{_PODS}.nodeSelector ? "
            f"string(r.{_PODS}.nodeSelector['{TOPOLOGY_LABEL}']) : 'none', "
            "'pods': (has(r.template.spec.parallelism) ? string(r.template.spec.parallelism) : '1') + 'x' + "
            f"string(({_CONTAINERS}).filter(c, {_WITH_CHIPS})[0].resources.limits['{TPU}'])}})"
        ),
        "queue": _label("object", _QUEUE),
        **({"priority": _label("object", _PRIORITY)} if _limited(teams) else {}),
        "cluster": f"has(object.metadata.annotations) && '{CLUSTER}' in object.metadata.annotations ? "
        f"string(object.metadata.annotations['{CLUSTER}']) : {_cel(cluster)}",
        "problems": " + ".join([*_problems(pools, teams, cluster), *_of_pods(account)]),
    }
    return {
        "failurePolicy": "Fail",
        # Created alone: of what is there, Kueue and JobSet change what no rule reads, and must be able to.
        "matchConstraints": {"resourceRules": [{**_JOBSETS, "operations": ["CREATE"]}]},
        "variables": [{"name": name, "expression": expression} for name, expression in variables.items()],
        "validations": [
            {
                "expression": "size(variables.problems) == 0",
                "message": "the JobSet can't run on this cluster",
                "messageExpression": "variables.problems.join('; ')",
            }
        ],
    }


def _problems(pools: Sequence[Mapping[str, Any]], teams: Sequence[Team], cluster: str) -> Iterator[str]:
    """Yield lists of messages in CEL, each empty where its rule holds."""
    queues = {team.namespace: team.queue for team in teams}
    spaces = _cel(sorted(queues))
    yield (
        f"(request.namespace in {spaces} ? [] : ['the namespace ' + request.namespace + ' is no team\\'s and "
        f"has no queue; fix: write the namespace of a team ({', '.join(sorted(queues))}), or add a team to "
        "queue:teams'])"
    )
    yield (
        f"(!(request.namespace in {spaces}) || variables.queue == {_cel(queues)}[request.namespace] ? [] : "
        f"['the label {_QUEUE} is ' + variables.queue + ', and jobs wait in queues alone; fix: write "
        f"{_QUEUE}: ' + {_cel(queues)}[request.namespace]])"
    )
    yield (
        f"(variables.cluster == {_cel(cluster)} ? [] : ['the manifest was written for ' + variables.cluster "
        f"+ ', and this is {cluster}; fix: kubectl config use-context, or tpu job submit --out anew'])"
    )
    if limited := _limited(teams):
        allowed = f"{_cel(limited)}[request.namespace]"
        yield (
            f"(!(request.namespace in {_cel(sorted(limited))}) || variables.priority in {allowed} ? [] : "
            f"['the label {_PRIORITY} is ' + variables.priority + ', and this team may use ' + "
            f"{allowed}.join(' or ') + '; fix: {_PRIORITY}: ' + {allowed}[0]])"
        )
    shapes = _shapes(pools)
    if shapes:
        yield from _of_slices(shapes)
    else:
        yield (
            "variables.slices.map(s, s.name + ' has the topology ' + s.topology + ', and the cluster has no "
            "pools with TPUs; fix: such a pool in gke:tpuPools, then tpu up ENV gke queue')"
        )


def _of_pods(account: str) -> Iterator[str]:
    """Likewise, for pods with chips and without."""
    bad = f"!has(c.image) || !c.image.matches('{_DIGEST}')"
    yield (
        f"object.spec.replicatedJobs.filter(r, ({_CONTAINERS}).exists(c, {bad})).map(r, r.name + ' has an "
        "image without a digest, which may be another one tomorrow; fix: IMAGE@sha256:..., by crane digest')"
    )
    own = _cel([account, "default"])
    other = " || ".join(f"(has(r.{_PODS}.{key}) && !(r.{_PODS}.{key} in {own}))" for key in _ACCOUNTS)
    yield (
        f"object.spec.replicatedJobs.filter(r, {other}).map(r, r.name + ' runs as another account than the "
        f"team\\'s; fix: serviceAccountName: {account}')"
    )
    pods = " * ".join(
        f"(has(r.{key}) ? int(r.{key}) : 1)" for key in ("replicas", "template.spec.parallelism")
    )
    without = f"object.spec.replicatedJobs.filter(r, !{_ANY_WITH_CHIPS})"
    yield (
        f"{without}.filter(r, {pods} > {_MOST_CPU_PODS}).map(r, r.name + ' has ' + string({pods}) + ' pods "
        f"without chips, on nodes that no queue rations; fix: {_MOST_CPU_PODS} at most')"
    )
    yield (
        f"(size({without}) < 2 ? [] : ['several replicatedJobs have pods without chips; fix: one at most'])"
    )


def _of_slices(shapes: Mapping[str, list[str]]) -> Iterator[str]:
    """Likewise, for the topologies that pools have."""
    known, nearest = (
        _cel(shapes),
        _cel({kind.topology: _nearest(kind.chips, shapes) for kind in CATALOG.types}),
    )
    listed = ", ".join(shapes)
    yield (
        f"variables.slices.filter(s, !(s.topology in {known})).map(s, s.name + ' has the topology ' + "
        f"s.topology + ', and the pools have {listed}; fix: {TOPOLOGY_LABEL}: ' + (s.topology in {nearest} ? "
        f"{nearest}[s.topology] : {_cel(next(iter(shapes)))}) + ', or such a pool in gke:tpuPools')"
    )
    yield (
        f"variables.slices.filter(s, s.topology in {known} && !(s.pods in {known}[s.topology])).map(s, "
        "s.name + ' has ' + s.pods + ' chips (parallelism x google.com/tpu of a pod), and a slice of ' + "
        f"s.topology + ' is ' + {known}[s.topology].join(' or ') + '; fix: one pod on each host, "
        "with all of its chips')"
    )


def _shapes(pools: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Topology → hosts x chips of a host, as pools have them."""
    shapes: dict[str, set[str]] = {}
    for pool in pools:
        shape = f"{pool['hosts']}x{pool['chips'] // pool['hosts']}"
        shapes.setdefault(pool["topology"], set()).add(shape)
    return {topology: sorted(shapes[topology]) for topology in sorted(shapes, key=chips_of)}


def _nearest(chips: int, shapes: Mapping[str, Any]) -> str:
    return min(shapes, key=lambda topology: abs(chips_of(topology) - chips))


def _cel(value: Any) -> str:
    """Return a literal: lists, maps and texts of JSON are CEL's, too."""
    return json.dumps(value)

"""Waits until JobSet and Kueue take objects: by asking them, not by sleeping.

A Deployment that is ready says nothing of its webhooks, whose certificates come later. Each kind that the
layers above make is created in a dry run until all of them pass. It is a dynamic resource, so that the engine
holds the queues back meanwhile.
https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pulumi
from pulumi import dynamic

from google_facts import lags
from infra.errors import InfraError

if TYPE_CHECKING:
    from infra.google.kubernetes import Cluster

# Controllers pull their images once the grant on the repository holds.
_TIMEOUT_S, _PAUSE_S = 300.0 + lags.GRANT.longest_s, 1.0
_NAME = "ready-check"
_KUEUE = "kueue.x-k8s.io/v1beta2"


def checks() -> Sequence[tuple[str, dict[str, Any]]]:
    """URLs and objects of dry runs: one for each webhook that jobs and queues pass."""
    meta = {"name": _NAME}
    pod = {"restartPolicy": "Never", "containers": [{"name": "one", "image": "none"}]}
    job = {"parallelism": 1, "completions": 1, "template": {"spec": pod}}
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {**meta, "namespace": "default"},
        "spec": {"replicatedJobs": [{"name": "one", "replicas": 1, "template": {"spec": job}}]},
    }
    flavor = {"apiVersion": _KUEUE, "kind": "ResourceFlavor", "metadata": meta, "spec": {}}
    queue = {
        "apiVersion": _KUEUE,
        "kind": "ClusterQueue",
        "metadata": meta,
        "spec": {"namespaceSelector": {}},
    }
    return (
        ("/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets", jobset),
        (f"/apis/{_KUEUE}/resourceflavors", flavor),
        (f"/apis/{_KUEUE}/clusterqueues", queue),
    )


def denied_by_policy(message: str) -> bool:
    """Return True for a refusal by the layer's own policy, which comes after JobSet's and Kueue's webhooks.

    It is in force where the controllers are new and the queues aren't. Mutating webhooks come before it:
    https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
    """
    from infra.layers.queue.admission import NAME

    return f"ValidatingAdmissionPolicy '{NAME}'" in message


def wait(project: str, endpoint: str, timeout_s: float = _TIMEOUT_S) -> float:
    """Return once every check passes: after how many seconds. Raises InfraError with the last refusal."""
    from infra.google.client import Client, RequestError  # here: the engine pickles what it finds above
    from infra.google.kubernetes import DRY_RUN, Cluster

    cluster, begun = Cluster(Client(project), endpoint), time.monotonic()
    waiting = list(checks())
    while waiting:
        try:
            cluster.create(waiting[0][0], waiting[0][1], DRY_RUN)
            waiting.pop(0)
        except RequestError as error:
            if denied_by_policy(error.failure.message):
                waiting.pop(0)
                continue
            if time.monotonic() - begun > timeout_s:
                kind = waiting[0][1]["kind"]
                lines = [
                    f"the cluster took no {kind} within {timeout_s:.0f} s: {error.failure.message}",
                    *(f"    {line}" for line in _held(cluster)),
                    "    fix: kubectl get pods -A says which controller isn't ready, and why; then again",
                ]
                raise InfraError("\n".join(lines)) from None
            time.sleep(_PAUSE_S)
    return time.monotonic() - begun


def _held(cluster: Cluster) -> Iterator[str]:
    """Yield which pods of the controllers wait, and for what, as far as the cluster answers."""
    from infra.google.client import RequestError

    for space in ("jobset-system", "kueue-system"):
        with contextlib.suppress(RequestError):
            for pod in cluster.items(f"/api/v1/namespaces/{space}/pods"):
                for container in pod.get("status", {}).get("containerStatuses", ()):
                    state = container.get("state", {}).get("waiting", {})
                    if state.get("message"):
                        yield f"{pod['metadata']['name']}: {state['reason']}: {state['message']}"


class _ReadyProvider(dynamic.ResourceProvider):
    """Waits whenever the controllers' images change, or the cluster."""

    def create(self, props: dict[str, Any]) -> dynamic.CreateResult:
        return dynamic.CreateResult("ready", outs=_waited(props))

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.DiffResult:
        return dynamic.DiffResult(
            changes=any(_olds.get(key) != _news.get(key) for key in ("images", "endpoint"))
        )

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.UpdateResult:
        return dynamic.UpdateResult(outs=_waited(_news))


def _waited(props: Mapping[str, Any]) -> dict[str, Any]:
    try:
        wait(props["project"], props["endpoint"])
    except InfraError as error:
        output = str(error)
        # Pulumi shows people what this gives it: a sentence instead of a traceback.
        traceback.format_exc = lambda *_, **__: output
        raise
    return dict(props)


class Ready(dynamic.Resource):
    """The moment from which the cluster takes jobs."""

    def __init__(
        self,
        project: str,
        endpoint: pulumi.Input[str],
        images: Sequence[str],
        needs: Sequence[pulumi.Resource],
    ):
        """`images`: the controllers', which are waited for anew when they change."""
        provider = pulumi.ProviderResource("pulumi-python", "ready", {})
        props = {"project": project, "endpoint": endpoint, "images": list(images)}
        super().__init__(
            _ReadyProvider(),
            "ready",
            props,
            pulumi.ResourceOptions(provider=provider, depends_on=list(needs)),
        )

"""The providers of the layer: Google Cloud, and what applies manifests to the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from infra.core.layer import directory
from infra.core.providers import GOOGLE, Factory
from infra.errors import InfraError
from infra.layers.queue import team
from infra.settings.schema import Settings

if TYPE_CHECKING:
    import pulumi


def kubernetes(settings: Settings, layer: str) -> pulumi.ProviderResource:
    """Return a provider of the gke layer's cluster: server-side apply, with the caller's own token."""
    import pulumi_kubernetes

    from infra.core import upstream
    from infra.layers.gke.outputs import GkeOutputs

    if endpoint := upstream.known(GkeOutputs, "endpoint"):
        check(settings, endpoint)
    cluster = upstream.read(GkeOutputs, settings)
    # A cluster that was replaced has another DNS name, and nothing of what is in this state. The kubeconfig
    # can't be the identity: while a preview doesn't know it, everything would be replaced.
    return pulumi_kubernetes.Provider(
        "kubernetes", kubeconfig=cluster.kubeconfig, cluster_identifier=cluster.endpoint
    )


def check(settings: Settings, endpoint: str) -> None:
    """Raise InfraError if the cluster of the gke layer's outputs was deleted or replaced.

    `endpoint`: of those outputs. What isn't known isn't gone: the provider then says what it meets.
    """
    from infra.google.client import Client, RequestError  # here, so that not every layer waits for them
    from infra.google.kubernetes import endpoint_of

    name, environment = team.cluster(settings), settings.environment
    try:
        current = endpoint_of(Client(settings.project), name)
    except RequestError:
        return
    if current == endpoint:
        return
    what = "is gone" if current is None else f"was replaced: it answers at {current}, and was at {endpoint}"
    raise InfraError(
        f"the cluster of the gke layer, {name}, {what}\n"
        f"    fix: pulumi -C {directory('gke')} refresh -s {environment}, and up; then with\n"
        "    PULUMI_K8S_DELETE_UNREACHABLE=true, which forgets what was in the old cluster:\n"
        f"    tpu up {environment} queue"
    )


KUBERNETES: Mapping[str, Factory] = MappingProxyType({**GOOGLE, "kubernetes": kubernetes})

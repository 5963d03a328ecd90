"""The providers of the layer: Google Cloud, and what applies manifests to the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from infra.providers import GOOGLE, Factory
from infra.settings.schema import Settings

if TYPE_CHECKING:
    import pulumi


def kubernetes(settings: Settings, layer: str) -> pulumi.ProviderResource:
    """The cluster of the gke layer, by server-side apply; its token comes from the caller's own login."""
    import pulumi
    import pulumi_kubernetes

    from infra import upstream
    from infra.gke import GkeOutputs

    cluster = upstream.read(GkeOutputs, settings)
    # Without an identifier, a kubeconfig that isn't known yet in a preview replaces everything.
    identifier = pulumi.Output.concat(
        f"projects/{settings.project}/locations/", cluster.location, "/clusters/", cluster.cluster_name
    )
    return pulumi_kubernetes.Provider(
        "kubernetes", kubeconfig=cluster.kubeconfig, cluster_identifier=identifier
    )


KUBERNETES: Mapping[str, Factory] = MappingProxyType({**GOOGLE, "kubernetes": kubernetes})

"""Explicit providers, made by a layer's factories. Default providers are disabled in `Pulumi.<env>.yaml`, so
a resource that forgot its own fails instead of landing in whatever project the shell points to.

A factory gets the settings and the layer's name. A factory that needs another layer's resource, such as a
cluster, reads it by `upstream.read`; it belongs to the folder of the layer that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from infra.core import names
from infra.settings.schema import GcpSettings, Settings

if TYPE_CHECKING:
    import pulumi

Factory = Callable[[Settings, str], "pulumi.ProviderResource"]


def gcp(settings: Settings, layer: str, *, charged: bool = False) -> pulumi.ProviderResource:
    """Google Cloud, with the labels that everything carries.

    `charged`: requests count for the project, as APIs demand that are of no project; otherwise, with the
    login of a person, for that of the program that made the login.
    https://cloud.google.com/docs/quotas/quota-project
    """
    import pulumi_gcp  # seconds, which commands without Pulumi don't wait

    labels = names.labels(settings.environment, layer)
    return pulumi_gcp.Provider(
        "gcp",
        project=settings.project,
        default_labels={**settings[GcpSettings].default_labels, **labels},
        billing_project=settings.project if charged else None,
        user_project_override=charged or None,
    )


GOOGLE: Mapping[str, Factory] = MappingProxyType({"gcp": gcp})
"""Providers of a layer on Google Cloud."""

"""Accounts of an existing cluster's nodes, on which the controllers run."""

from __future__ import annotations

import pulumi

from infra.core.names import account_email
from infra.google import kubernetes
from infra.google.client import Client
from infra.layers.gke import pools
from infra.layers.gke.settings import GkeSettings
from infra.settings.schema import Settings

_DEFAULT = "default"


def accounts(settings: Settings, number: pulumi.Input[str]) -> dict[str, pulumi.Input[str]]:
    """Return the accounts of others' nodes without TPUs by their names in the cluster. Raises RequestError.

    `number`: of the project, for Compute Engine's own account.
    """
    cluster = kubernetes.described(Client(settings.project), pools.cluster_id(settings)) or {}
    configs = [item.get("config") or {} for item in cluster.get("nodePools") or ()]
    names = {
        str(config.get("serviceAccount") or _DEFAULT)
        for config in configs
        if not str(config.get("machineType")).startswith(pools.TPU_MACHINES)
    }
    names.discard(account_email(settings, settings[GkeSettings].node_account_id))
    default = pulumi.Output.concat(number, "-compute@developer.gserviceaccount.com")
    return {name: default if name == _DEFAULT else name for name in sorted(names)}

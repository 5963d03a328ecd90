"""An existing cluster: accounts of its nodes, where the controllers run, and what it may lack for teams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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

    Warns of what the cluster lacks. `number`: of the project, for Compute Engine's own account.
    """
    cluster = kubernetes.described(Client(settings.project), pools.cluster_id(settings)) or {}
    for lack in lacks(settings, cluster):
        pulumi.log.warn(lack)
    configs = [item.get("config") or {} for item in cluster.get("nodePools") or ()]
    names = {
        str(config.get("serviceAccount") or _DEFAULT)
        for config in configs
        if not str(config.get("machineType")).startswith(pools.TPU_MACHINES)
    }
    names.discard(account_email(settings, settings[GkeSettings].node_account_id))
    default = pulumi.Output.concat(number, "-compute@developer.gserviceaccount.com")
    return {name: default if name == _DEFAULT else name for name in sorted(names)}


def lacks(settings: Settings, cluster: Mapping[str, Any]) -> Iterator[str]:
    """Yield what isn't as in a cluster of ours, with the fix; its owner may want it so."""
    name, where = settings[GkeSettings].cluster_name, f"--project={settings.project}"
    network, private = cluster.get("networkConfig") or {}, cluster.get("privateClusterConfig") or {}
    # https://cloud.google.com/kubernetes-engine/docs/how-to/network-policy
    enforced = (cluster.get("networkPolicy") or {}).get("enabled")
    if not enforced and network.get("datapathProvider") != "ADVANCED_DATAPATH":
        update = f"gcloud container clusters update {name} {where} --location={pools.region(settings)}"
        yield (
            f"{name} enforces no NetworkPolicy: pods of every namespace reach those of a team\n"
            f"    fix: {update} --update-addons=NetworkPolicy=ENABLED; then {update} "
            "--enable-network-policy, which replaces its nodes"
        )
    # https://cloud.google.com/kubernetes-engine/docs/concepts/firewall-rules
    if private.get("peeringName"):
        host, _, name_ = str(network.get("network")).removeprefix("projects/").partition("/global/networks/")
        yield (
            f"the control plane of {name} reaches its nodes by VPC peering, to which GKE opens "
            "ports 443 and 10250, not those of JobSet's and Kueue's webhooks\n    fix, unless a rule does: "
            f"gcloud compute firewall-rules create {name}-webhooks --project={host} --network={name_} "
            f"--source-ranges={private.get('masterIpv4CidrBlock')} --allow=tcp:8082,tcp:9443"
        )

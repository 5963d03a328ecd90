"""Declares the network layer."""

from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra import names, nodes
from infra.network.existing import checked_mtu
from infra.network.firewall import Firewall
from infra.network.ours import TrainingNetwork
from infra.settings import Settings


def program(settings: Settings, provider: gcp.Provider) -> dict[str, Any]:
    """The network and its rules. Returns the outputs of the stack."""
    opts = pulumi.ResourceOptions(provider=provider)
    regions = nodes.regions(settings)
    network_id: pulumi.Input[str]
    if settings.network.existing_network:
        network_id = names.network_id(settings)
        subnet_ids: dict[str, Any] = {region: names.subnet_id(settings, region) for region in regions}
        mtu: Any = checked_mtu(settings, provider)
    else:
        ours = TrainingNetwork(settings, regions, opts)
        network_id = ours.network.id
        subnet_ids = {region: subnet.id for region, subnet in ours.subnets.items()}
        mtu = ours.network.mtu
    if settings.network.manage_firewall:
        Firewall(settings, network_id, opts)
    return {"networkId": network_id, "subnetIds": subnet_ids, "mtu": mtu}

"""Declares the network layer."""

from collections.abc import Mapping

import pulumi

from infra import names, nodes
from infra.network import NetworkOutputs
from infra.network.existing import checked_mtu
from infra.network.firewall import Firewall
from infra.network.ours import TrainingNetwork
from infra.network.settings import NetworkSettings
from infra.settings import Settings


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> NetworkOutputs:
    """The network and its rules."""
    opts = pulumi.ResourceOptions(provider=providers["gcp"])
    regions = nodes.regions(settings)
    if settings[NetworkSettings].existing_network:
        subnets = {region: names.subnet_id(settings, region) for region in regions}
        outputs = NetworkOutputs(
            network_id=pulumi.Output.from_input(names.network_id(settings)),
            subnet_ids={region: pulumi.Output.from_input(subnet) for region, subnet in subnets.items()},
            mtu=checked_mtu(settings, providers["gcp"]),
        )
    else:
        ours = TrainingNetwork(settings, regions, opts)
        outputs = NetworkOutputs(
            network_id=ours.network.id,
            subnet_ids={region: subnet.id for region, subnet in ours.subnets.items()},
            mtu=ours.network.mtu,
        )
    if settings[NetworkSettings].manage_firewall:
        Firewall(settings, outputs.network_id, opts)
    return outputs

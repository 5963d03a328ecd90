"""Declaration of the network layer."""

from collections.abc import Mapping

import pulumi

from infra.layers.network.existing import checked_mtu
from infra.layers.network.firewall import Firewall
from infra.layers.network.names import network_id, subnet_id
from infra.layers.network.ours import TrainingNetwork
from infra.layers.network.outputs import NetworkOutputs
from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import Settings
from infra.slices import nodes


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> NetworkOutputs:
    """Declare the network and its rules."""
    opts = pulumi.ResourceOptions(provider=providers["gcp"])
    regions = nodes.regions(settings)
    if settings[NetworkSettings].existing_network:
        subnets = {region: subnet_id(settings, region) for region in regions}
        outputs = NetworkOutputs(
            network_id=pulumi.Output.from_input(network_id(settings)),
            subnet_ids={region: pulumi.Output.from_input(subnet) for region, subnet in subnets.items()},
            mtu=checked_mtu(settings, providers["gcp"]),
        )
    else:
        created = TrainingNetwork(settings, regions, opts)
        outputs = NetworkOutputs(
            network_id=created.network.id,
            subnet_ids={region: subnet.id for region, subnet in created.subnets.items()},
            mtu=created.network.mtu,
        )
    if settings[NetworkSettings].manage_firewall:
        Firewall(settings, outputs.network_id, opts)
    return outputs

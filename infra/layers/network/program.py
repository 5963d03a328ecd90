"""Declaration of the network layer."""

from collections.abc import Mapping

import pulumi
import pulumi_gcp as gcp

from infra.layers.network.firewall import Firewall
from infra.layers.network.names import network_id, subnet_id
from infra.layers.network.ours import TrainingNetwork
from infra.layers.network.outputs import NetworkOutputs
from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import Settings
from infra.slices import nodes

# MTU of a network on which none was set (compute v1, Network.mtu).
UNSET_MTU = 1460


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


def checked_mtu(settings: Settings, provider: pulumi.ProviderResource) -> pulumi.Output[int]:
    """Return the MTU of the existing network, checked against the settings.

    The network is read as a resource: the look-up function `getNetwork` leaves its MTU out.
    """
    desired = settings[NetworkSettings]
    existing = desired.existing_network or ""
    network = gcp.compute.Network.get("existing", existing, opts=pulumi.ResourceOptions(provider=provider))

    def check(answered: int | None) -> int:
        mtu = int(answered or UNSET_MTU)
        if mtu != desired.mtu:
            raise pulumi.RunError(
                f"network:existingNetwork: {existing} has MTU {mtu}, and network:mtu is {desired.mtu}; "
                f"write network:mtu: {mtu}, or raise the network's (its machines must be restarted): "
                f"gcloud compute networks update {existing.rpartition('/')[2]} --mtu={desired.mtu}"
            )
        return mtu

    return network.mtu.apply(check)

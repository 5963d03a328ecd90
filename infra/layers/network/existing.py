"""An existing network: used unchanged, after a check of its MTU."""

import pulumi
import pulumi_gcp as gcp

from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import Settings

# MTU of a network on which none was set (compute v1, Network.mtu).
UNSET_MTU = 1460


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

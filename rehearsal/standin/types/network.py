"""gcp:compute/network:Network."""

from __future__ import annotations

from rehearsal.standin.lifecycle import Resource
from rehearsal.standin.table import (
    COMPUTE,
    DELETION_POLICY,
    NAME,
    PROJECT,
    SELF_LINK,
    Field,
    Kind,
    Send,
    Table,
    Update,
)

NETWORK = Resource(
    Table(
        token="gcp:compute/network:Network",
        service=COMPUTE,
        collection="projects/{project}/global/networks",
        item="projects/{project}/global/networks/{name}",
        fields=(
            NAME,
            PROJECT,
            DELETION_POLICY,
            # Changing it replaces the network and all that stands on it (recorded).
            Field("description", replaces=True),
            Field("autoCreateSubnetworks", Kind.BOOL, default=True, replaces=True, send=Send.GIVEN),
            Field(
                "deleteDefaultRoutesOnCreate", Kind.BOOL, rest=None, default=False, only=False, replaces=True
            ),
            Field("mtu", Kind.INT, computed=True, replaces=True),
            Field("networkFirewallPolicyEnforcementOrder", default="AFTER_CLASSIC_FIREWALL"),
            Field(
                "routingMode", rest="routingConfig.routingMode", computed=True, one_of=("REGIONAL", "GLOBAL")
            ),
            Field("bgpBestPathSelectionMode", rest="routingConfig.bgpBestPathSelectionMode", computed=True),
            Field("bgpAlwaysCompareMed", Kind.BOOL, rest="routingConfig.bgpAlwaysCompareMed", computed=True),
            Field("bgpInterRegionCost", rest="routingConfig.bgpInterRegionCost", computed=True),
            Field(
                "deleteBgpAlwaysCompareMed",
                Kind.BOOL,
                rest="routingConfig.deleteBgpAlwaysCompareMed",
                send=Send.ALWAYS,
            ),
            SELF_LINK,
            Field("networkId", rest="id", output=True),
            Field("numericId", rest="id", output=True),
            Field("gatewayIpv4", rest="gatewayIPv4", output=True),
            Field("enableUlaInternalIpv6", Kind.BOOL, output=True),
            Field("internalIpv6Range", output=True),
            Field("networkProfile", output=True),
            Field("params", Kind.MAP, rest=None, output=True),
        ),
        updates=(
            Update(
                (
                    "networkFirewallPolicyEnforcementOrder",
                    "routingMode",
                    "bgpBestPathSelectionMode",
                    "bgpAlwaysCompareMed",
                    "bgpInterRegionCost",
                    "deleteBgpAlwaysCompareMed",
                )
            ),
        ),
    )
)

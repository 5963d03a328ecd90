"""Settings of the network layer."""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.settings import rules
from infra.settings.schema import setting


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The hosts' network: created here, or an existing one."""

    name: str = setting(
        "name of the network, and prefix of its subnets and rules",
        default="tpu-training",
        rule=rules.NETWORK_NAME,
        per_environment=True,
    )
    mtu: int = setting(
        "largest packet, bytes; Google's recipes for several slices set 8896",
        default=8896,
        rule=rules.between(1300, 8896, "bytes"),
    )
    subnet_ranges: Mapping[str, str] = setting(
        "region → address range of its subnet; regions with v6e have defaults, each a /20 of 10.64.0.0/16",
        default={},
        rule=rules.SUBNET_RANGE,
        key_rule=rules.REGION,
    )
    cloud_nat: bool = setting(
        "Cloud NAT, for access to the internet; hosts have no external address, and boot without it",
        default=False,
    )
    flow_log_sampling: float = setting(
        "share of connections that the subnets log", default=0.5, rule=rules.between(0.01, 1)
    )
    ssh_source_ranges: tuple[str, ...] = setting(
        "sources of SSH; the default is Identity-Aware Proxy; [] allows none",
        default=("35.235.240.0/20",),
        rule=rules.SOURCE_RANGE,
    )
    existing_network: str | None = setting(
        "id of an existing network to use; its MTU must be `network:mtu`",
        default=None,
        rule=rules.NETWORK_ID,
    )
    existing_subnets: Mapping[str, str] = setting(
        "region → id of a subnet of that network",
        default={},
        rule=rules.SUBNET_ID,
        key_rule=rules.REGION,
    )
    manage_firewall: bool = setting(
        "create firewall rules; false if the owner of an existing network manages them", default=True
    )

    @property
    def reaches_any_host(self) -> bool:
        """Return False if machines reach Google's hosts alone; of somebody else's network it isn't known."""
        return bool(self.cloud_nat or self.existing_network)

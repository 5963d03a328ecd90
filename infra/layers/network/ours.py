"""A created network."""

import pulumi
import pulumi_gcp as gcp

from infra.layers.network.names import subnet_name, subnet_ranges
from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import Settings


class TrainingNetwork(pulumi.ComponentResource):
    """A network with large packets and one subnet per region in use."""

    network: gcp.compute.Network
    subnets: dict[str, gcp.compute.Subnetwork]

    def __init__(
        self, settings: Settings, regions: tuple[str, ...], opts: pulumi.ResourceOptions | None = None
    ):
        name = settings[NetworkSettings].name
        super().__init__("tpu:network:TrainingNetwork", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.network = gcp.compute.Network(
            name,
            name=name,
            description="Network of the TPU slices",
            auto_create_subnetworks=False,
            mtu=settings[NetworkSettings].mtu,
            routing_mode="REGIONAL",
            # A new description would replace the network and everything in it.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["description"]),
        )
        ranges = subnet_ranges(settings, regions)
        self.subnets = {
            region: gcp.compute.Subnetwork(
                subnet := subnet_name(settings, region),
                name=subnet,
                network=self.network.id,
                region=region,
                ip_cidr_range=ranges[region],
                # Hosts have no external address: they reach Google's APIs by private access.
                private_ip_google_access=True,
                log_config={
                    "aggregation_interval": "INTERVAL_10_MIN",
                    "flow_sampling": settings[NetworkSettings].flow_log_sampling,
                    "metadata": "INCLUDE_ALL_METADATA",
                },
                opts=child,
            )
            for region in regions
        }
        if settings[NetworkSettings].cloud_nat:
            for region in regions:
                self._nat(name, region)
        self.register_outputs({})

    def _nat(self, name: str, region: str) -> None:
        router = gcp.compute.Router(
            f"{name}-{region}",
            name=f"{name}-{region}",
            network=self.network.id,
            region=region,
            opts=pulumi.ResourceOptions(parent=self),
        )
        gcp.compute.RouterNat(
            f"{name}-{region}-nat",
            name=f"{name}-{region}-nat",
            router=router.name,
            region=region,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
            log_config={"enable": True, "filter": "ERRORS_ONLY"},
            opts=pulumi.ResourceOptions(parent=self),
        )

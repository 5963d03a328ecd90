"""Firewall rules of hosts: from other hosts, and by SSH. Google refuses everything else by default."""

from collections.abc import Mapping
from types import MappingProxyType

import pulumi
import pulumi_gcp as gcp

from infra.layers.network.names import SLICE_TAG, network_id
from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import Settings

# Traffic between hosts, by port. Rules match by network tag, which the TPU API documents for its nodes;
# it documents no rules by service account.
SLICE_PORTS: Mapping[str, str] = MappingProxyType(
    {
        "8080": "megascale (libtpu), between the hosts of slices that run one job",
        "8470-8475": "TPU runtime (libtpu), between the hosts of a slice",
        "8476": "JAX coordinator: the port that the workload pins",
        "8482": "JAX coordinator: default since JAX 0.8.1",
        "32768-60999": "what programs open on a free port (Linux's range): gloo, data between slices",
    }
)


class Firewall(pulumi.ComponentResource):
    """The rules of a network, named after it so that two environments can share an existing network."""

    def __init__(
        self,
        settings: Settings,
        network: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ):
        prefix = settings[NetworkSettings].name
        super().__init__("tpu:network:Firewall", prefix, None, opts)
        project = network_id(settings).split("/")[1]  # a shared network has its rules at its own project
        gcp.compute.Firewall(
            f"{prefix}-slice-internal",
            name=f"{prefix}-slice-internal",
            project=project,
            network=network,
            direction="INGRESS",
            source_tags=[SLICE_TAG],
            target_tags=[SLICE_TAG],
            allows=[
                {"protocol": "tcp", "ports": [*SLICE_PORTS]},
                # ICMP reports packets that are too large (path MTU discovery).
                {"protocol": "icmp"},
            ],
            opts=pulumi.ResourceOptions(parent=self),
        )
        if settings[NetworkSettings].ssh_source_ranges:
            gcp.compute.Firewall(
                f"{prefix}-ssh",
                name=f"{prefix}-ssh",
                project=project,
                network=network,
                direction="INGRESS",
                source_ranges=list(settings[NetworkSettings].ssh_source_ranges),
                target_tags=[SLICE_TAG],
                allows=[{"protocol": "tcp", "ports": ["22"]}],
                log_config={"metadata": "INCLUDE_ALL_METADATA"},
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({})

"""Ports between the cluster's machines and hosts; nothing else reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.layers.network.names import host_tag, network_id
from infra.layers.network.settings import NetworkSettings
from infra.layers.slurm import names
from infra.layers.slurm.settings import NFS, SlurmSettings
from infra.settings.schema import Settings


@dataclass(frozen=True)
class Way:
    """A way in: to machines with some tags, from others or from addresses."""

    name: str
    to: tuple[str, ...]
    ports: tuple[str, ...]
    tags: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()


def ways(settings: Settings) -> Iterator[Way]:
    """Yield the ways in.

    Hosts of a slice reach one another by the network layer's rule, which has the port of JAX's coordinator.
    """
    desired = settings[SlurmSettings]
    controller, login = (names.tag(settings, role) for role in names.ROLES)
    hosts = host_tag(names.name(settings))
    nfs = (str(names.NFS_PORT),) if desired.home_storage == NFS else ()
    yield Way("slurmctld", (controller,), (str(names.SLURMCTLD), *nfs), tags=(hosts, login))
    yield Way("slurmd", (hosts,), (str(names.SLURMD),), tags=(hosts, controller, login))
    low, high = names.SRUN_PORTS
    yield Way("srun", (hosts, login), (f"{low}-{high}",), tags=(hosts, controller))
    if desired.accounting:
        yield Way("slurmdbd", (controller,), (str(names.SLURMDBD),), tags=(login,))
    if ranges := settings[NetworkSettings].ssh_source_ranges:
        yield Way("ssh", (controller, login), ("22",), ranges=ranges)


class SlurmFirewall(pulumi.ComponentResource):
    """A rule for each way in, unless the owner of an existing network keeps its rules."""

    def __init__(self, settings: Settings, network: pulumi.Input[str], opts: pulumi.ResourceOptions):
        prefix = names.name(settings)
        super().__init__("tpu:slurm:Firewall", prefix, None, opts)
        for way in ways(settings) if settings[NetworkSettings].manage_firewall else ():
            gcp.compute.Firewall(
                f"{prefix}-{way.name}",
                name=f"{prefix}-{way.name}",
                project=network_id(settings).split("/")[1],
                network=network,
                direction="INGRESS",
                source_tags=list(way.tags) or None,
                source_ranges=list(way.ranges) or None,
                target_tags=list(way.to),
                allows=[{"protocol": "tcp", "ports": list(way.ports)}],
                log_config={"metadata": "INCLUDE_ALL_METADATA"} if way.ranges else None,
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({})

"""Declares the data layer."""

from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra import names, nodes
from infra.settings import Settings


class DataDisks(pulumi.ComponentResource):
    """One Hyperdisk ML per zone, all from one snapshot; each is read by every host of its zone."""

    disks: dict[str, gcp.compute.Disk]

    def __init__(
        self, settings: Settings, zones: tuple[str, ...], opts: pulumi.ResourceOptions | None = None
    ):
        super().__init__("tpu:data:DataDisks", "data", None, opts)
        self.disks = {
            zone: gcp.compute.Disk(
                zone,
                name=names.disk_name(settings, zone),
                zone=zone,
                type="hyperdisk-ml",
                snapshot=names.snapshot_id(settings),
                size=settings.data.size_gib,
                provisioned_throughput=settings.data.throughput_mibps,
                access_mode="READ_ONLY_MANY",
                labels=settings.data.labels,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for zone in zones
        }
        self.register_outputs({"disks": {zone: disk.id for zone, disk in self.disks.items()}})


def program(settings: Settings, provider: gcp.Provider) -> dict[str, Any]:
    """The disks, if there is a snapshot. Returns the outputs of the stack."""
    zones = nodes.zones(settings) if settings.data.snapshot else ()
    disks = DataDisks(settings, zones, pulumi.ResourceOptions(provider=provider)).disks
    return {"diskIds": {zone: disk.id for zone, disk in disks.items()}}

"""Declaration of the data layer."""

from collections.abc import Mapping

import pulumi
import pulumi_gcp as gcp

from infra.layers.data.names import disk_name, snapshot_id
from infra.layers.data.outputs import DataOutputs
from infra.layers.data.settings import DataSettings
from infra.settings.schema import Settings
from infra.slices import nodes


class DataDisks(pulumi.ComponentResource):
    """A Hyperdisk ML per zone, all from the same snapshot; each is read by every host of its zone."""

    disks: dict[str, gcp.compute.Disk]

    def __init__(
        self, settings: Settings, zones: tuple[str, ...], opts: pulumi.ResourceOptions | None = None
    ):
        super().__init__("tpu:data:DataDisks", "data", None, opts)
        self.disks = {
            zone: gcp.compute.Disk(
                zone,
                name=disk_name(settings, zone),
                zone=zone,
                type="hyperdisk-ml",
                snapshot=snapshot_id(settings),
                size=settings[DataSettings].size_gib,
                provisioned_throughput=settings[DataSettings].throughput_mibps,
                access_mode="READ_ONLY_MANY",
                labels=settings[DataSettings].labels,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for zone in zones
        }
        self.register_outputs({})


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> DataOutputs:
    """Declare the disks, if there is a snapshot."""
    zones = nodes.zones(settings) if settings[DataSettings].snapshot else ()
    disks = DataDisks(settings, zones, pulumi.ResourceOptions(provider=providers["gcp"])).disks
    return DataOutputs(disk_ids={zone: disk.id for zone, disk in disks.items()})

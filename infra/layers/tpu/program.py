"""Declaration of the TPU layer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pulumi

from infra.core import upstream
from infra.google.acting import once_it_may_act
from infra.layers.data.outputs import DataOutputs
from infra.layers.data.settings import DataSettings
from infra.layers.network.outputs import NetworkOutputs
from infra.layers.storage.names import service_account_email
from infra.layers.storage.outputs import StorageOutputs
from infra.layers.storage.settings import StorageSettings
from infra.layers.tpu import bundle
from infra.layers.tpu.mark import StackMark
from infra.layers.tpu.metadata import metadata
from infra.layers.tpu.outputs import TpuOutputs
from infra.layers.tpu.request import SliceResources
from infra.layers.tpu.slice import TpuSlice
from infra.settings.schema import Settings
from infra.slices import preflight
from infra.slices.nodes import Node, nodes
from infra.slices.settings import TpuSettings


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> TpuOutputs:
    """Declare all slices."""
    desired, provider = nodes(settings), providers["gcp"]
    storage = upstream.read(StorageOutputs, settings)
    for words in preflight.of(desired, settings[TpuSettings].code) if pulumi.runtime.is_dry_run() else ():
        (pulumi.log.warn if words.warn else pulumi.log.info)(words.line)
    if desired:
        bundles = {node.bundle for node in desired}
        bundle.require(settings, bundles, upstream.known(StorageOutputs, "bucket_name"), provider)
    # Read all outputs first: a missing layer is reported before anything is created.
    network = upstream.read(NetworkOutputs, settings)
    data = settings.get(DataSettings)
    disks = upstream.read(DataOutputs, settings) if data and data.snapshot else None
    opts = pulumi.ResourceOptions(provider=provider)
    slices = named_slices(settings, storage, network, disks, opts)
    mark = StackMark()
    published = settings[TpuSettings].bundle
    return TpuOutputs(
        slices=pulumi.Output.from_input(
            [slice_.outputs(settings.project, storage.bucket_name) for slice_ in slices]
        ),
        fleets=pulumi.Output.from_input(_fleets(settings, desired)),
        stack_id=mark.id,
        bundle=pulumi.Output.from_input(published) if published else None,
    )


def named_slices(
    settings: Settings,
    storage: StorageOutputs,
    network: NetworkOutputs,
    disks: DataOutputs | None = None,
    opts: pulumi.ResourceOptions | None = None,
) -> list[TpuSlice]:
    """Declare the slices of `tpu:slices` that are no fleets, on resources of this or of other stacks.

    All are placed before any is declared.
    """
    place_of = _places(settings, storage, network, disks)
    placed = [(node, place_of(node)) for node in nodes(settings) if node.member is None]
    return [_slice(settings, node, place, storage, opts) for node, place in placed]


def _slice(
    settings: Settings,
    node: Node,
    place: SliceResources,
    storage: StorageOutputs,
    opts: pulumi.ResourceOptions | None,
) -> TpuSlice:
    disk = place.data_disk_id
    attributes = metadata(
        settings,
        node,
        bucket=storage.bucket_name,
        steps_bucket=storage.steps_bucket_name,
        data_disk=disk and pulumi.Output.from_input(disk).apply(lambda id_: id_.rpartition("/")[2]),
    )
    return TpuSlice(node, place, attributes, opts=opts)


def _fleets(settings: Settings, wanted: Sequence[Node]) -> list[dict[str, Any]]:
    """Return the fleets, whose members Pulumi doesn't create, with the commands that do."""
    fleets = []
    for item in settings[TpuSettings].slices:
        members = [node for node in wanted if node.slice == item.name and node.member is not None]
        if members:
            command = f"tpu fleet create {settings.environment} --slice {item.name}"
            zones = ", ".join(sorted({node.zone for node in members}))
            what = f"{len(members)} x {members[0].kind.name} in {zones}"
            pulumi.log.info(f"fleet {item.name}: {what} are not Pulumi's: `{command}` makes and keeps them")
            fleets.append({"name": item.name, "count": len(members), "create": command})
    return fleets


def _places(
    settings: Settings, storage: StorageOutputs, network: NetworkOutputs, disks: DataOutputs | None
) -> Callable[[Node], SliceResources]:
    """Return a function from nodes to the resources of other layers in their zones."""
    users = settings[StorageSettings].service_account_users
    acting = once_it_may_act(settings.project, [service_account_email(settings)], users)

    def place(node: Node) -> SliceResources:
        return SliceResources(
            network_id=network.network_id,
            subnet_id=network.subnet_ids[node.region],
            data_disk_id=None if disks is None else disks.disk_ids[node.zone],
            service_account_email=storage.service_account_email,
            secure_boot=settings[TpuSettings].secure_boot,
            acting=acting,
        )

    return place

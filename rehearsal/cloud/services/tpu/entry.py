"""The TPU API's entry: look-ups of nodes and of the offer.

`service` serves what changes nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from rehearsal.cloud.collections import Change, Collection, Entry, Reference
from rehearsal.cloud.core.world import World
from rehearsal.cloud.services.tpu.catalog import ACCELERATOR, RUNTIME_VERSIONS, SLICES, ZONES
from rehearsal.cloud.services.tpu.nodes import Nodes

_LOCATIONS = "tpu.projects.locations"
# Read-only, and apart from the locations of other APIs.
_OFFER = (
    Collection(_LOCATIONS, qualified=True),
    Collection(f"{_LOCATIONS}.acceleratorTypes", permission="tpu.acceleratortypes", qualified=True),
    Collection(f"{_LOCATIONS}.runtimeVersions", permission="tpu.runtimeversions", qualified=True),
)


def entry(nodes: Nodes) -> Entry:
    """Return the entry over these nodes."""

    def show(change: Change) -> None:
        change.body = nodes.render(nodes.get(change.name))

    looked_up = Collection(
        f"{_LOCATIONS}.nodes",
        omit=("create", "patch", "delete"),
        references=(
            Reference("dataDisks.sourceDisk", ("compute.disks",)),
            Reference("networkConfig.network", ("compute.networks",)),
            Reference("networkConfig.subnetwork", ("compute.subnetworks",)),
        ),
        shown=show,
    )
    return Entry(
        "tpu",
        ("v2", "v2alpha1"),
        (*_OFFER, looked_up),
        package="google.cloud.tpu.{version}",
        own_operations=False,
    )


def add_offer(world: World, zones: Iterable[str]) -> None:
    """Add the types and runtime versions of each of the zones that has v6e to the directory."""
    for zone in ZONES.intersection(zones):
        location = f"projects/{world.project}/locations/{zone}"
        types: dict[str, dict[str, object]] = {
            slice_.accelerator_type: {
                "type": slice_.accelerator_type,
                "acceleratorConfigs": [{"type": ACCELERATOR, "topology": slice_.topology}],
            }
            for slice_ in SLICES
        }
        bodies: dict[str, dict[str, object]] = {location: {"locationId": zone}}
        bodies |= {f"{location}/acceleratorTypes/{name}": body for name, body in types.items()}
        bodies |= {f"{location}/runtimeVersions/{name}": {"version": name} for name in RUNTIME_VERSIONS}
        for name, body in bodies.items():
            world.directory[f"//tpu.googleapis.com/{name}"] = {"name": name, **body}

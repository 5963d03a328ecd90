"""Nodes of the slices in the settings: a fleet with `count: 8` has eight."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.catalog import CATALOG, SliceType, region_of
from infra.errors import Problem
from infra.settings.schema import Settings
from infra.slices import sizes
from infra.slices.names import fleet_member
from infra.slices.settings import SliceSettings, TpuSettings

_BUNDLE_DIGITS = 12


@dataclass(frozen=True)
class Node:
    """TPU slice as Google knows it: a node in a zone, with one or more hosts."""

    slice: str
    name: str
    zone: str  # where it is, or is to be made
    home: str  # where its slice names it; a fleet's member may be in another one
    kind: SliceType
    spot: bool
    reserved: bool
    runtime_version: str
    run: str | None
    labels: Mapping[str, str]
    bundle: str | None = None  # that its hosts install
    image: str | None = None  # of the container that its program starts in
    checkpoint_folder: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  # of its program
    member: int | None = None  # of a fleet, which `fleet` makes and not Pulumi; counted from 0 over all zones
    together: tuple[str, ...] = ()  # all nodes that run one job together, this one too; empty for one alone
    others: tuple[str, ...] = ()  # zones where it may be made besides home, in order
    spread: tuple[str, ...] = ()  # zones of its fleet

    @property
    def key(self) -> str:
        """Key in the fleet's state, wherever the node is made: a named slice's name, or fleet and number."""
        return self.name if self.member is None else f"{self.slice}/{self.member}"

    @property
    def bundle_label(self) -> str:
        """Value of its label `bundle`: the first digits of the bundle's id."""
        return (self.bundle or "")[:_BUNDLE_DIGITS]

    @property
    def places(self) -> tuple[str, ...]:
        """Candidate zones, in order: current, home, fallbacks."""
        return tuple(dict.fromkeys((self.zone, self.home, *self.others)))

    @property
    def region(self) -> str:
        """The region of its zone."""
        return region_of(self.zone)


def members(slice_: SliceSettings) -> list[tuple[str, str]]:
    """(node id, zone) of each node. A fleet that has no node yet is spread over its zones in turn; what is
    there already keeps its number, name and zone, whatever the settings say since (fleet/members.py).
    """
    if slice_.count is None or not slice_.zones:
        return [(slice_.name, zone) for zone in slice_.zones]
    places = len(slice_.zones)
    return [
        (fleet_member(zone := slice_.zones[i % places], slice_.first_worker_id + i // places), zone)
        for i in range(slice_.count)
    ]


def nodes(settings: Settings) -> tuple[Node, ...]:
    """Return all nodes, in the order of the settings."""
    result: list[Node] = []
    for slice_ in settings[TpuSettings].slices:
        kind = sizes.kind_of(slice_.accelerator_type, slice_.topology)
        assert kind is not None, "the settings were checked"
        named = members(slice_)
        together = tuple(name for name, _ in named) if slice_.multislice else ()
        result += [
            Node(
                slice=slice_.name,
                name=name,
                zone=zone,
                home=zone,
                spread=slice_.zones if slice_.count else (),
                others=tuple(fallback for fallback in slice_.fallback_zones if fallback != zone),
                kind=kind,
                spot=slice_.spot,
                reserved=slice_.reserved,
                runtime_version=slice_.runtime_version or settings[TpuSettings].runtime_version,
                run=slice_.run,
                labels=slice_.labels,
                bundle=slice_.bundle or settings[TpuSettings].bundle,
                image=slice_.image,
                checkpoint_folder=slice_.checkpoint_folder,
                variables=slice_.variables.environment,
                member=None if slice_.count is None else member,
                together=together,
            )
            for member, (name, zone) in enumerate(named)
        ]
    return tuple(result)


def zones(settings: Settings) -> tuple[str, ...]:
    """Zones in use, or that slices may be made in, sorted."""
    tpu = settings[TpuSettings]
    slices = {zone for slice_ in tpu.slices for zone in (*slice_.zones, *slice_.fallback_zones)}
    return tuple(sorted({*slices, *tpu.zones}))


def known_zones(settings: Settings) -> tuple[str, ...]:
    """Zones that offer v6e: those of the catalog, and those that the settings add."""
    return (*CATALOG.zones, *settings[TpuSettings].additional_zones)


def unknown_zone(path: str, zone: str) -> Problem:
    """Return the problem that a zone isn't known to offer v6e."""
    return Problem(
        path,
        f'zone "{zone}"',
        f"v6e is offered in {', '.join(CATALOG.zones)} (read {CATALOG.zones_read})",
        f"choose one of these; if Google offers it there to you, add {zone} to tpu:additionalZones",
    )


def regions(settings: Settings) -> tuple[str, ...]:
    """Regions in use, sorted."""
    return tuple(sorted({region_of(zone) for zone in zones(settings)}))

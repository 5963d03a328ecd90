"""Slices of the nodesets: names of slices and hosts, Slurm's lists of hosts, and the fleet's records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from infra.catalog import SliceType
from infra.layers.network.names import CLUSTER_LABEL
from infra.layers.slurm import names
from infra.layers.slurm.settings import NodesetSettings, SlurmSettings
from infra.settings.schema import Settings
from infra.slices import sizes

_SLICE = re.compile(r"(?P<nodeset>[a-z][-a-z0-9]*)-(?P<number>\d{1,5})")
_HOST = re.compile(rf"{_SLICE.pattern}-w(?P<worker>\d{{1,5}})")
_OUTSIDE = re.compile(r",(?![^\[]*\])")
_BRACKET = re.compile(r"\[([^\]]*)\]")


class NameListError(ValueError):
    """Text that is no list of hosts, or names a host that no nodeset has."""


@dataclass(frozen=True, order=True)
class SlurmSlice:
    """A slice of a nodeset by its number, counted from 0; static ones are the first."""

    nodeset: str
    number: int

    @property
    def name(self) -> str:
        """Return the name of its record, which is Slurm's name of its switch: "tpu-3"."""
        return f"{self.nodeset}-{self.number}"

    def host(self, worker: int) -> str:
        """Return Slurm's name of a host: "tpu-3-w1"."""
        return f"{self.name}-w{worker}"


@dataclass(frozen=True)
class Nodeset:
    """A nodeset of the settings with the size of its slices, and how many of them there may be."""

    settings: NodesetSettings
    kind: SliceType

    @property
    def name(self) -> str:
        """Return its name."""
        return self.settings.name

    @property
    def hosts(self) -> int:
        """Return the number of hosts of a slice."""
        return self.kind.hosts

    @property
    def static(self) -> int:
        """Return the number of slices that are always there."""
        return self.settings.node_count_static // self.hosts

    @property
    def count(self) -> int:
        """Return the number of slices, static and dynamic."""
        most = max(self.settings.node_count_static, self.settings.node_count_dynamic_max)
        return most // self.hosts

    @property
    def slices(self) -> list[SlurmSlice]:
        """Return its slices by number."""
        return [SlurmSlice(self.name, number) for number in range(self.count)]

    @property
    def places(self) -> tuple[str, ...]:
        """Return the zones where its slices may be, in order."""
        return tuple(dict.fromkeys((self.settings.zone, *self.settings.fallback_zones)))

    def names(self, first: int = 0, end: int | None = None) -> str:
        """Return hosts as Slurm's list, "tpu-[0-3]-w[0-1]": of the slices from `first` to before `end`."""
        last = (self.count if end is None else end) - 1
        # Slurm takes a second number in brackets alone: it calls a-[0-1]-w0 an invalid list.
        return f"{self.name}-{_range(first, last)}-w{_range(0, self.hosts - 1)}"


@dataclass(frozen=True)
class Reached:
    """Addresses that are known once the stack is up.

    Attributes:
        controller: internal address of the controller.
        home: SERVER:PATH of /home.
    """

    controller: str
    home: str


def nodesets(settings: Settings) -> tuple[Nodeset, ...]:
    """Return the nodesets, in the order of the settings."""
    return tuple(map(_nodeset, settings[SlurmSettings].nodesets))


def _nodeset(item: NodesetSettings) -> Nodeset:
    kind = sizes.kind_of(item.accelerator_type, item.topology)
    assert kind is not None, "the settings were checked"
    return Nodeset(item, kind)


def slices(settings: Settings) -> list[SlurmSlice]:
    """Return all slices."""
    return [slice_ for nodeset in nodesets(settings) for slice_ in nodeset.slices]


def static(settings: Settings) -> list[SlurmSlice]:
    """Return the slices that are always there."""
    return [slice_ for nodeset in nodesets(settings) for slice_ in nodeset.slices[: nodeset.static]]


def hosts(settings: Settings, slice_: SlurmSlice) -> list[str]:
    """Return Slurm's names of a slice's hosts, by worker. Raises NameListError for a slice that isn't."""
    for nodeset in nodesets(settings):
        if nodeset.name == slice_.nodeset and slice_.number < nodeset.count:
            return [slice_.host(worker) for worker in range(nodeset.hosts)]
    raise NameListError(f"no nodeset has a slice {slice_.name}")


def of_record(name: str) -> SlurmSlice | None:
    """Return the slice of a record's name; None for another name."""
    match = _SLICE.fullmatch(name)
    return SlurmSlice(match["nodeset"], int(match["number"])) if match else None


def of_host(name: str) -> tuple[SlurmSlice, int]:
    """Return the slice and the worker number of a host. Raises NameListError for another name."""
    match = _HOST.fullmatch(name)
    if match is None:
        raise NameListError(f"{name} is no host of a slice")
    return SlurmSlice(match["nodeset"], int(match["number"])), int(match["worker"])


def expand(text: str) -> list[str]:
    """Return the names in a list of Slurm's: "a-[0-1]-w[0,2]" is four. Raises NameListError."""
    parts = _OUTSIDE.split(text) if text else []
    return [name for part in parts for name in _expanded(part)]


def _expanded(part: str) -> Iterator[str]:
    pieces = _BRACKET.split(part)
    literal, ranges = pieces[::2], [list(_numbers(text, part)) for text in pieces[1::2]]
    if not part or any(set(piece) & set("[] ,") for piece in literal):
        raise NameListError(f"{part!r} is no list of hosts")
    for chosen in product(*ranges):
        yield "".join(f"{piece}{number}" for piece, number in zip(literal, (*chosen, ""), strict=True))


def _numbers(text: str, part: str) -> Iterator[str]:
    for piece in text.split(","):
        low, dash, high = piece.partition("-")
        if not (low.isdecimal() and (high.isdecimal() or not dash)):
            raise NameListError(f"{part!r} is no list of hosts")
        width = len(low) if low.startswith("0") else 0
        yield from (f"{number:0{width}}" for number in range(int(low), int(high or low) + 1))


def _range(first: int, last: int) -> str:
    return f"[{first}-{last}]" if last > first else f"[{first}]"


def record(settings: Settings, slice_: SlurmSlice, reached: Reached) -> Mapping[str, Any]:
    """Return the fleet's record of a slice, as an item of `tpu:slices` with its owner.

    Raises NameListError for a slice that no nodeset has.
    """
    hosts(settings, slice_)
    (nodeset,) = (nodeset for nodeset in nodesets(settings) if nodeset.name == slice_.nodeset)
    desired = nodeset.settings
    return {
        "name": slice_.name,
        "acceleratorType": nodeset.kind.name,
        "zones": [desired.zone],
        "count": 1,
        **({"fallbackZones": list(desired.fallback_zones)} if desired.fallback_zones else {}),
        **({"spot": True} if desired.spot else {}),
        **({"reserved": True} if desired.reserved else {}),
        **({"runtimeVersion": desired.runtime_version} if desired.runtime_version else {}),
        "run": run(settings, slice_, reached),
        "labels": {CLUSTER_LABEL: names.name(settings)},
        "owner": names.owner(settings),
    }


def run(settings: Settings, slice_: SlurmSlice, reached: Reached) -> str:
    """Return what the hosts of a slice start (workload/host/slurmd.py).

    `slurmd CONTROLLER PREFIX BUNDLE SECRET HOME [--startup=gs://…]
    [--mount=TYPE,SERVER,REMOTE,LOCAL,OPTION:OPTION]…`
    """
    desired = settings[SlurmSettings]
    nodeset = next(item for item in desired.nodesets if item.name == slice_.nodeset)
    words = [
        "slurmd", reached.controller, slice_.name, str(desired.bundle), names.munge_secret_id(settings),
        reached.home,
    ]  # fmt: skip
    if nodeset.startup_script:
        words.append(f"--startup={nodeset.startup_script}")
    for mount in nodeset.network_storage:
        options = mount.options.replace(",", ":")  # commas part the fields
        words.append(f"--mount={mount.type},{mount.server or ''},{mount.remote},{mount.local},{options}")
    return " ".join(words)

"""Facts about GKE as typed values: `facts.toml`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.catalog import SliceType
from infra.core import facts


@dataclass(frozen=True)
class Machine:
    """A machine type with TPU chips; `several`: whether a slice may have more than one."""

    name: str
    chips: int
    several: bool = False

    def carries(self, kind: SliceType) -> bool:
        """Return whether a slice of this size can be built of such machines."""
        return kind.chips == self.chips or (self.several and kind.chips % self.chips == 0)


@dataclass(frozen=True)
class Channel:
    """A release channel: the minor versions 1.`first` to 1.`last`."""

    first: int
    last: int


@dataclass(frozen=True)
class CpuFamily:
    """A family of machines for CPU nodes: how many CPUs (none: any even number), and kinds of boot disks."""

    disks: tuple[str, ...]
    cpus: tuple[int, ...] = ()
    custom: bool = False


_CPU_MACHINE = re.compile(
    r"[a-z0-9]+-((standard|highmem|highcpu)-(?P<cpus>[1-9][0-9]{0,2})(-lssd|-metal)?"
    r"|custom-[1-9][0-9]{0,2}-(?P<memory>[1-9][0-9]{2,6})(-ext)?)"
)


def _entries(block: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {key: value for key, value in block.items() if isinstance(value, dict)}


_FACTS = facts.of("infra.layers.gke")
MACHINES = tuple(Machine(name, **fields) for name, fields in _entries(_FACTS["machines"]).items())
CHANNELS: Mapping[str, Channel] = {
    name: Channel(**fields) for name, fields in _entries(_FACTS["channels"]).items()
}
CHANNELS_READ: str = _FACTS["channels"]["read"]
MAX_FLEX_START_S: int = _FACTS["cluster"]["max_flex_start_s"]


CPU_FAMILIES: Mapping[str, CpuFamily] = {
    name: CpuFamily(tuple(known["disks"]), tuple(known.get("cpus", ())), known.get("custom", False))
    for name, known in _entries(_FACTS["cpu_families"]).items()
}


def cpu_family(machine: str) -> CpuFamily | None:
    """Return the family of a CPU node's machine type; None where there is no such type."""
    family = CPU_FAMILIES.get(machine.partition("-")[0])
    match = _CPU_MACHINE.fullmatch(machine)
    if family is None or match is None:
        return None
    if match["memory"]:
        return family if family.custom else None
    cpus = int(match["cpus"])
    return family if cpus in family.cpus or (not family.cpus and cpus % 2 == 0) else None


def cpus_of(machine: str) -> int:
    """Return the CPUs of a machine type, by its name: "n2-standard-4" has 4; 0 where it tells none."""
    match = re.match(r"[a-z0-9]+-[a-z]+-([0-9]+)", machine)
    return int(match[1]) if match else 0


def machines_for(kind: SliceType) -> tuple[Machine, ...]:
    """Return machines for a slice of this size; the default, with the most chips, is the first."""
    machines = (machine for machine in MACHINES if machine.carries(kind))
    return tuple(sorted(machines, key=lambda machine: -machine.chips))

"""Machine types of Compute Engine without accelerators: machines.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from google_facts import table


@dataclass(frozen=True)
class CpuFamily:
    """A family of machines: how many CPUs (none: any even number), and kinds of disks."""

    disks: tuple[str, ...]
    cpus: tuple[int, ...] = ()
    custom: bool = False


_CPU_MACHINE = re.compile(
    r"[a-z0-9]+-((standard|highmem|highcpu)-(?P<cpus>[1-9][0-9]{0,2})(-lssd|-metal)?"
    r"|custom-[1-9][0-9]{0,2}-(?P<memory>[1-9][0-9]{2,6})(-ext)?)"
)


CPU_FAMILIES: Mapping[str, CpuFamily] = {
    name: CpuFamily(tuple(known["disks"]), tuple(known.get("cpus", ())), known.get("custom", False))
    for name, known in table("machines")["families"].items()
    if isinstance(known, dict)
}


def cpu_family(machine: str) -> CpuFamily | None:
    """Return the family of a machine type; None where there is no such type."""
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

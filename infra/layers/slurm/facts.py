"""Facts about hosts as Slurm nodes as typed values: `facts.toml`."""

from dataclasses import dataclass

from infra.catalog import SliceType
from infra.core import facts


@dataclass(frozen=True)
class Host:
    """A machine of a slice: its CPUs, and its memory."""

    cpus: int
    memory_gib: int

    @property
    def real_memory_mib(self) -> int:
        """Memory for jobs: what the system takes is left to it, 5 %."""
        return self.memory_gib * 1024 * 95 // 100


_FACTS = facts.of("infra.layers.slurm")
HOSTS = {int(chips): Host(**known) for chips, known in _FACTS["hosts"].items() if chips.isdigit()}
"""Machines by their number of chips."""
MOST_NAMES: int = _FACTS["slurm"]["most_names"]
"""Hosts in one numbered range of Slurm's names."""
FILESTORE_GIB = {
    tier: tuple(range(least, most + 1, step) for least, most, step in known)
    for tier, known in _FACTS["filestore"].items()
    if isinstance(known, list)
}
"""Sizes that a Filestore instance may have, by tier."""


def host_of(kind: SliceType) -> Host:
    """Return the machine that a slice of this size is built of."""
    return HOSTS[kind.chips_per_host]

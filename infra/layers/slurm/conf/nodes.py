"""Nodes, partitions and topology: lines of slurm.conf, and topology.conf.

Chips are no generic resource (`Gres`): a job has the chips of its hosts. Slurm 22.05 loses what it counted of
them when slurmctld starts while nodes are powered down, and then refuses each step.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.layers.slurm.facts import host_of
from infra.layers.slurm.settings import PartitionSettings, SlurmSettings
from infra.layers.slurm.slices import Nodeset, nodesets
from infra.settings.schema import Settings


def partitions(settings: Settings) -> tuple[PartitionSettings, ...]:
    """Return the partitions: given ones, or one for each nodeset."""
    desired = settings[SlurmSettings]
    return desired.partitions or tuple(
        PartitionSettings(name=nodeset.name, nodesets=(nodeset.name,)) for nodeset in desired.nodesets
    )


def default_partition(settings: Settings) -> str:
    """Return the partition of jobs that name none."""
    every = partitions(settings)
    return next((partition.name for partition in every if partition.default), every[0].name)


def nodesets_of(settings: Settings, partition: PartitionSettings) -> list[Nodeset]:
    """Return the nodesets of a partition."""
    return [nodeset for nodeset in nodesets(settings) if nodeset.name in partition.nodesets]


def node_lines(settings: Settings) -> Iterator[str]:
    """Yield a line for each nodeset."""
    for nodeset in nodesets(settings):
        host = host_of(nodeset.kind)
        yield (
            f"NodeName={nodeset.names()} CPUs={host.cpus} RealMemory={host.real_memory_mib} "
            f"Feature={nodeset.name},{nodeset.kind.name} State=CLOUD"
        )


def partition_lines(settings: Settings) -> Iterator[str]:
    """Yield a line for each partition: its jobs have whole hosts, and so whole slices (job_submit.lua)."""
    default = default_partition(settings)
    for partition in partitions(settings):
        hosts = ",".join(nodeset.names() for nodeset in nodesets_of(settings, partition))
        limit = f"{partition.max_hours}:00:00" if partition.max_hours else "INFINITE"
        yield (
            f"PartitionName={partition.name} Nodes={hosts} "
            f"Default={'YES' if partition.name == default else 'NO'} MaxTime={limit} "
            "OverSubscribe=EXCLUSIVE State=UP"
        )


def always_on(settings: Settings) -> str:
    """Return the hosts that are never suspended, as Slurm's list: static ones, and those to preserve."""
    kept = ((nodeset, nodeset.count if nodeset.settings.preserve_tpu else nodeset.static)
            for nodeset in nodesets(settings))  # fmt: skip
    return ",".join(nodeset.names(0, number) for nodeset, number in kept if number)


def topology(settings: Settings) -> str:
    """Return topology.conf: a switch is a slice, and above the slices of a nodeset is the datacenter network.

    No switch is above two nodesets: "Jobs can only span nodes connected by the same switch fabric".
    https://manpages.ubuntu.com/manpages/lunar/man5/topology.conf.5.html
    """
    lines = []
    for nodeset in nodesets(settings):
        for slice_ in nodeset.slices:
            lines.append(f"SwitchName={slice_.name} Nodes={nodeset.names(slice_.number, slice_.number + 1)}")
        last = nodeset.count - 1
        numbers = f"[0-{last}]" if last else "0"
        lines.append(f"SwitchName={nodeset.name} Switches={nodeset.name}-{numbers}")
    return _joined(lines)


def _joined(lines: list[str] | Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)

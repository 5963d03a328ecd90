"""job_submit.lua: what every job must obey, as tables of the settings and a script that is the same for all.

https://slurm.schedmd.com/archive/slurm-22.05.8/job_submit_plugins.html
"""

from __future__ import annotations

from importlib import resources

from infra.layers.slurm.conf import nodes
from infra.layers.slurm.facts import host_of
from infra.layers.slurm.settings import SLICE, SlurmSettings
from infra.settings.schema import Settings


def tables(settings: Settings) -> str:
    """Return the tables of the script: partitions with the size of a slice, the default one, and the unit."""
    lines = ["PARTITIONS = {"]
    for partition in nodes.partitions(settings):
        sets = nodes.nodesets_of(settings, partition)
        kind, most = sets[0].kind, max(nodeset.count for nodeset in sets)
        host = host_of(kind)
        lines.append(
            f'  ["{partition.name}"] = {{ kind = "{kind.name}", hosts = {kind.hosts}, slices = {most}, '
            f"cpus = {host.cpus}, memory_mib = {host.real_memory_mib} }},"
        )
    unit = str(settings[SlurmSettings].n_unit == SLICE).lower()
    return "\n".join(
        [*lines, "}", f'DEFAULT = "{nodes.default_partition(settings)}"', f"COUNTS_SLICES = {unit}", ""]
    )


def text(settings: Settings, script: str = "job_submit.lua") -> str:
    """Return a script of this folder with its tables: job_submit.lua, or cli_filter.lua of login nodes."""
    return tables(settings) + resources.files(__package__).joinpath(script).read_text(encoding="utf-8")

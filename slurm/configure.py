"""Slurm's own files, and the daemons that read them: written at boot, and when the settings have changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from infra.layers.slurm import conf, names
from infra.layers.slurm.slices import Reached
from infra.settings.schema import Settings
from slurm.decide import Slice
from slurm.errors import SlurmError
from slurm.nodes import SlurmNode
from slurm.system import System

_LOG = logging.getLogger(__name__)
_DROP_IN = """\
[Unit]
RequiresMountsFor={state}
After=munge.service

[Service]
LimitNOFILE=1048576
Restart=on-failure
RestartSec=5
"""


def files(settings: Settings, reached: Reached, role: str) -> Mapping[str, str]:
    """Return the files of /etc/slurm on a machine of a role."""
    made = conf.of_login if role == names.LOGIN else conf.files
    return made(settings, reached)


def differing(system: System, wanted: Mapping[str, str]) -> list[str]:
    """Return the names of files that are missing or different."""
    return [
        name
        for name, text in wanted.items()
        if not (path := system.path(f"{names.ETC}/{name}")).exists() or path.read_text("utf-8") != text
    ]


def write(system: System, wanted: Mapping[str, str]) -> bool:
    """Write the files; return whether any differed."""
    changed = [_write(system, name, text) for name, text in wanted.items()]
    return any(changed)


def _write(system: System, name: str, text: str) -> bool:
    secret = name == conf.SLURMDBD  # slurmdbd refuses a file that others may read
    return system.write(
        f"{names.ETC}/{name}", text, mode=0o600 if secret else 0o644, owner="slurm" if secret else ""
    )


def blocked(slices: Sequence[Slice], nodes: Mapping[str, SlurmNode]) -> list[str]:
    """Return hosts that the new files lack, and that aren't given up yet: Slurm would forget their jobs."""
    wanted = {host for slice_ in slices for host in slice_.hosts}
    return sorted(name for name, node in nodes.items() if name not in wanted and not node.out)


def start(system: System, *, changed: bool) -> None:
    """Start slurmctld; after a change of its files again: it learns of new nodes in no other way.

    Jobs run on meanwhile, and hosts ask for the files anew. Slurm 22.05 takes nodes in at a start alone:
    https://slurm.schedmd.com/archive/slurm-22.05.8/slurm.conf.html, NodeName.
    """
    unit = "/etc/systemd/system/slurmctld.service.d/tpu.conf"
    if system.write(unit, _DROP_IN.format(state=names.STATE)):
        system.run(["systemctl", "daemon-reload"])
    system.start("slurmctld.service", again=changed)
    if changed:
        system.run(["scontrol", "reconfigure"])
        _LOG.info("slurmctld has read its files again")


def answers(system: System, address: str) -> None:
    """Require that slurmctld answers. Raises SlurmError."""
    answer = system.run(["scontrol", "ping"])
    if "is UP" not in answer:
        raise SlurmError(f"slurmctld at {address} doesn't answer: {answer.strip()[:200]}")

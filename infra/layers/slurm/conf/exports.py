"""Export of /home by the controller: lines of /etc/exports."""

from __future__ import annotations

from infra.catalog import region_of
from infra.layers.network.names import subnet_ranges
from infra.layers.network.settings import NetworkSettings
from infra.layers.slurm import names
from infra.layers.slurm.settings import NFS, SlurmSettings
from infra.layers.slurm.slices import nodesets
from infra.settings.schema import Settings

HOME = "/home"
_OPTIONS = "rw,sync,no_subtree_check"


def text(settings: Settings) -> str:
    """Return /etc/exports, empty where /home is elsewhere.

    A login node makes a person's folder at the first login, as root; no other machine is root there.
    """
    if settings[SlurmSettings].home_storage != NFS:
        return ""
    clients = [f"{login}({_OPTIONS},no_root_squash)" for login in logins(settings)]
    clients += [f"{range_}({_OPTIONS},root_squash)" for range_ in _ranges(settings)]
    return f"{HOME} {' '.join(clients)}\n"


def logins(settings: Settings) -> list[str]:
    """Return the login nodes as DNS names them. https://cloud.google.com/compute/docs/internal-dns"""
    end = f"{names.zone(settings)}.c.{settings.project}.internal"
    return [f"{login}.{end}" for login in names.logins(settings)]


def _ranges(settings: Settings) -> list[str]:
    """Return the addresses of hosts; any where somebody else's subnets have them, behind the firewall."""
    if settings[NetworkSettings].existing_network:
        return ["*"]
    zones = (names.zone(settings), *(zone for nodeset in nodesets(settings) for zone in nodeset.places))
    return list(subnet_ranges(settings, dict.fromkeys(map(region_of, zones))).values())

"""Accounting: lines of slurm.conf, slurmdbd.conf, and sacctmgr's commands for accounts and limits."""

from __future__ import annotations

from collections.abc import Iterator

from infra.layers.slurm import names
from infra.layers.slurm.settings import SlurmSettings, TeamSettings
from infra.settings.schema import Settings

DATABASE = "slurm_acct_db"
_UNLIMITED = -1


def of_slurm_conf(settings: Settings, address: str) -> dict[str, object]:
    """Return the lines of slurm.conf, by key; with accounts, limits hold, and fair share orders the queue."""
    desired = settings[SlurmSettings]
    if not desired.accounting:
        return {}
    limits: dict[str, object] = {
        "AccountingStorageEnforce": "associations,limits,qos",
        "PriorityType": "priority/multifactor",
        "PriorityDecayHalfLife": "7-0",
        "PriorityWeightFairshare": 100000,
        "PriorityWeightAge": 1000,
    }
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": address,
        "AccountingStoragePort": names.SLURMDBD,
        **(limits if desired.accounts else {}),
    }


def slurmdbd(settings: Settings) -> str:
    """Return slurmdbd.conf, empty without accounting. MariaDB knows the user by its socket: no password."""
    if not settings[SlurmSettings].accounting:
        return ""
    values = {
        "AuthType": "auth/munge",
        "DbdHost": names.controller(settings),
        "DbdPort": names.SLURMDBD,
        "SlurmUser": "slurm",
        "LogFile": f"{names.LOGS}/slurmdbd.log",
        "PidFile": "/run/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "slurm",
        "StorageLoc": DATABASE,
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def sacctmgr(settings: Settings) -> Iterator[list[str]]:
    """Yield the arguments of sacctmgr, after `--immediate`, that make each account with its limits and users.

    `add` does nothing to what is there, so `modify` follows.
    """
    cluster = names.name(settings)
    for team in settings[SlurmSettings].accounts:
        yield ["add", "account", team.name, f"Cluster={cluster}"]
        yield ["modify", "account", "where", f"Name={team.name}", f"Cluster={cluster}", "set", *_limits(team)]
        for user in team.users:
            yield ["add", "user", user, f"Account={team.name}", f"Cluster={cluster}"]


def _limits(team: TeamSettings) -> list[str]:
    return [
        f"Fairshare={team.fairshare}",
        f"GrpTRES=node={team.max_hosts or _UNLIMITED}",
        f"GrpJobs={team.max_jobs or _UNLIMITED}",
    ]

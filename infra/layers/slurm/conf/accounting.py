"""Accounting: lines of slurm.conf, slurmdbd.conf, and sacctmgr's commands for accounts and limits."""

from __future__ import annotations

from collections.abc import Iterator

from infra.layers.slurm import names
from infra.layers.slurm.settings import LimitSettings, SlurmSettings, TeamSettings
from infra.settings.schema import Settings

DATABASE = "slurm_acct_db"
_UNLIMITED = -1
_NORMAL = "normal"  # slurmdbd makes it


def of_slurm_conf(settings: Settings, address: str) -> dict[str, object]:
    """Return the lines of slurm.conf, by key; with accounts, limits hold, and fair share orders the queue."""
    desired = settings[SlurmSettings]
    if not desired.accounting:
        return {}
    limits: dict[str, object] = {
        "AccountingStorageEnforce": "associations,limits,qos",
        "PriorityType": "priority/multifactor",
        "PriorityDecayHalfLife": "7-0",
        "PriorityCalcPeriod": 1,  # minutes until use counts: hosts are few, and each is dear
        "PriorityWeightFairshare": 100000,
        "PriorityWeightAge": 1000,
        **({"PriorityWeightQOS": 100000} if desired.qos else {}),
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
        "PidFile": "/run/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "slurm",
        "StorageLoc": DATABASE,
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def sacctmgr(settings: Settings) -> Iterator[list[str]]:
    """Yield the arguments of sacctmgr, after `--immediate`, that make each QOS and account with its limits.

    `add` does nothing to what is there, so `modify` follows.
    """
    cluster = names.name(settings)
    for qos in settings[SlurmSettings].qos:
        yield ["add", "qos", qos.name]
        yield ["modify", "qos", "where", f"Name={qos.name}", "set", *_of_qos(qos)]
    for team in settings[SlurmSettings].accounts:
        yield ["add", "account", team.name, f"Cluster={cluster}"]
        yield ["modify", "account", "where", f"Name={team.name}", f"Cluster={cluster}", "set", *_limits(team)]
        for user in team.users:
            yield ["add", "user", user, f"Account={team.name}", f"Cluster={cluster}"]


def _of_qos(qos: LimitSettings) -> list[str]:
    return [
        f"Priority={qos.priority}",
        f"GrpTRES=node={qos.max_hosts or _UNLIMITED}",
        f"MaxTRESPerUser=node={qos.max_hosts_per_user or _UNLIMITED}",
        f"MaxJobsPerUser={qos.max_jobs_per_user or _UNLIMITED}",
    ]


def _limits(team: TeamSettings) -> list[str]:
    return [
        f"Fairshare={team.fairshare}",
        f"GrpTRES=node={team.max_hosts or _UNLIMITED}",
        f"GrpJobs={team.max_jobs or _UNLIMITED}",
        f"QosLevel={','.join(dict.fromkeys((_NORMAL, *team.qos)))}",
    ]

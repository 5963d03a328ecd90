"""Accounting on the controller: MariaDB on the state disk, slurmdbd, accounts and their limits."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.layers.slurm import names
from infra.layers.slurm.conf import accounting
from infra.layers.slurm.settings import SlurmSettings
from infra.settings.schema import Settings
from slurm.errors import SlurmError
from slurm.system import System, patiently

_DATA = f"{names.STATE}/mysql"
_SETTINGS = f"""\
[mysqld]
datadir={_DATA}
bind-address=127.0.0.1
skip-networking
# What slurmdbd asks for: https://slurm.schedmd.com/archive/slurm-22.05.8/accounting.html
innodb_buffer_pool_size=512M
innodb_lock_wait_timeout=900
max_allowed_packet=16M
"""
_CONF = "/run/slurm-settings/slurm.conf"
_SACCTMGR = ("env", f"SLURM_CONF={_CONF}", "sacctmgr")
_UNCHANGED = ("Nothing new added", "Nothing modified", "already exist")
_LOG = logging.getLogger(__name__)


def start(
    system: System, settings: Settings, bundle: Path, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Start the database and slurmdbd, and make its user; each is there already at later boots.

    Args:
        system: of the controller.
        settings: with accounting on.
        bundle: folder of the installed bundle.
        sleep: pauses.

    Raises:
        SlurmError: a step fails.
    """
    archive = bundle / "accounting.tar.gz"
    if not system.path("/usr/sbin/mariadbd").exists():
        system.run(
            ["tar", "--extract", "--gzip", f"--file={archive}", f"--directory={system.root}",
             "--skip-old-files", "--keep-directory-symlink", "--same-permissions"], timeout_s=300.0,
        )  # fmt: skip
        system.run(["ldconfig"])
    if system.write("/etc/sysusers.d/mysql.conf", 'u mysql 64031 "MariaDB"\n'):
        system.run(["systemd-sysusers", "/etc/sysusers.d/mysql.conf"])
    changed = system.write("/etc/mysql/mariadb.conf.d/99-slurm.cnf", _SETTINGS)
    system.run(["systemctl", "daemon-reload"])
    _database(system)
    system.folder("/run/mysqld", owner="mysql")  # of its socket; the package's own way is a start of systemd
    system.start("mariadb.service", again=changed)
    statements = (
        f"CREATE DATABASE IF NOT EXISTS {accounting.DATABASE};"
        "CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED VIA unix_socket;"
        f"GRANT ALL ON {accounting.DATABASE}.* TO 'slurm'@'localhost';"
    )
    patiently(lambda: system.run(["mariadb", "--batch"], text=statements), sleep)
    system.start("slurmdbd.service")


def _database(system: System) -> None:
    """Make the database's files in a folder of another name first: a half of them is begun again."""
    if system.path(_DATA).exists():
        return
    fresh = f"{_DATA}.new"
    shutil.rmtree(system.path(fresh), ignore_errors=True)
    system.folder(fresh, mode=0o700, owner="mysql")
    system.run(
        ["mariadb-install-db", "--user=mysql", f"--datadir={fresh}", "--skip-test-db"], timeout_s=300.0
    )
    system.path(fresh).rename(system.path(_DATA))


def limits(
    system: System, settings: Settings, conf: str, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Make the cluster, its accounts and users, and set their limits. Raises SlurmError.

    By the slurm.conf of the settings: that of slurmctld may be an earlier one, without accounting.
    """
    system.write(_CONF, conf)
    cluster = ["add", "cluster", names.name(settings)]
    patiently(lambda: _sacctmgr(system, cluster), sleep)
    for arguments in accounting.sacctmgr(settings):
        _sacctmgr(system, arguments)
    _users(system, settings)


def _users(system: System, settings: Settings) -> None:
    """Take users out of the accounts that don't list them any more, and let those back in that do.

    Slurm keeps a user whose jobs wait or run: these go on, and no further one is taken.
    """
    teams = {team.name: team.users for team in settings[SlurmSettings].accounts}
    for account, user, most in _members(system, settings):
        of_user = ["user", "where", f"Name={user}", f"Cluster={names.name(settings)}"]
        of_both = [*of_user, f"Account={account}"]
        if user in teams.get(account, (user,)):
            if account in teams and most == "0":
                _sacctmgr(system, ["modify", *of_both, "set", "MaxSubmitJobs=-1"])
            continue
        if other := next((name for name, users in teams.items() if user in users), ""):
            _sacctmgr(system, ["modify", *of_user, "set", f"DefaultAccount={other}"])
        try:
            _sacctmgr(system, ["delete", *of_both])
        except SlurmError as error:
            _sacctmgr(system, ["modify", *of_both, "set", "MaxSubmitJobs=0"])
            _LOG.warning(
                "%s submits no more to %s, and leaves it at the next start: %s", user, account, error
            )


def _members(system: System, settings: Settings) -> Iterator[list[str]]:
    """Yield account, user and most jobs of each user's association."""
    of_cluster = ["where", f"Cluster={names.name(settings)}", "format=account,user,maxsubmitjobs"]
    text = system.run([*_SACCTMGR, "--noheader", "--parsable2", "show", "associations", *of_cluster])
    yield from (row for line in text.splitlines() if len(row := line.split("|")) == 3 and row[1])


def _sacctmgr(system: System, arguments: list[str]) -> None:
    try:
        system.run([*_SACCTMGR, "--immediate", *arguments])
    except SlurmError as error:
        if not any(sign in str(error) for sign in _UNCHANGED):
            raise

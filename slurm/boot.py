"""Make a machine the controller or a login node; run by its start-up script at every boot.

Each step finds done what an earlier boot did, and completes what was left by one that died. systemd starts
nothing by itself: what runs, runs because the steps before it have succeeded.
"""

from __future__ import annotations

import logging
from pathlib import Path

from infra.engine.settings import from_file
from infra.google.client import Client
from infra.layers.slurm import conf, names
from infra.layers.slurm.settings import SlurmSettings
from infra.layers.slurm.slices import Reached
from infra.settings.schema import Settings
from infra.slices.names import STACK_ID_VARIABLE
from slurm import accounting, configure, disk, munge
from slurm.errors import SlurmError
from slurm.logs import KEEPER
from slurm.machine import Metadata
from slurm.system import System, patiently
from workload.host import unit

PROGRAM = "/opt/slurm/program"
"""Link to the folder of the present program."""
PYTHON = "/opt/tpu/venv/bin/python"
_BUNDLES = Path("/opt/tpu/bundles")
_UNIT = f"""\
[Unit]
Description=Slices and files of the Slurm cluster
After=network-online.target

[Service]
WorkingDirectory={PROGRAM}
Environment={STACK_ID_VARIABLE}={{stack}}
ExecStart={PYTHON} -m slurm keep {{role}}
Restart=always
RestartSec=5
"""
_POWER = f"""\
#!/bin/sh
exec {PYTHON} -I -S {PROGRAM}/slurm/power.py {names.REQUESTS} {{verb}} "$@"
"""
_VERBS = {names.RESUME: "resume", names.SUSPEND: "suspend", names.RESUME_FAILED: "resume-failed"}
_LOG = logging.getLogger(__name__)


def reached(metadata: Metadata) -> Reached:
    """Return what the metadata says of the cluster. Raises SlurmError."""
    return Reached(metadata.value(names.CONTROLLER_KEY), metadata.value(names.HOME_KEY))


def known(metadata: Metadata) -> Settings:
    """Return the settings that came with the program. Raises SlurmError or SettingsError."""
    return from_file(metadata.value(names.ENVIRONMENT_KEY))


def boot(role: str, metadata: Metadata, system: System, client: Client | None = None) -> None:
    """Bring up a machine of a role.

    Args:
        role: of the machine.
        metadata: of it.
        system: the machine.
        client: of the project; by its settings, unless given.

    Raises:
        InfraError: a step fails.
    """
    if role not in names.ROLES:
        raise SlurmError(f"slurm boot {role}: the roles are {', '.join(names.ROLES)}")
    settings = known(metadata)
    _unit(system, unit.LOGS, unit.logs_unit(f"slurm logs {role}", PROGRAM))
    client = client or Client(settings.project)
    if role == names.CONTROLLER:
        _controller(metadata, settings, system, client)
    else:
        _login(metadata, settings, system, client)
    _unit(system, KEEPER, _UNIT.format(role=role, stack=metadata.value(names.STACK_KEY)))
    if role == names.CONTROLLER:
        _answers(system, metadata.value(names.CONTROLLER_KEY))


def _controller(metadata: Metadata, settings: Settings, system: System, client: Client) -> None:
    _step("the state disk")
    disk.state(system, names.name(settings))
    _step("munge's key")
    munge.install(system, munge.of_controller(system, client, metadata.value(names.MUNGE_KEY)))
    _step("/home")
    disk.home(system, settings, metadata.value(names.HOME_KEY))
    for path, verb in _VERBS.items():
        system.write(path, _POWER.format(verb=verb), mode=0o755)
    desired = settings[SlurmSettings]
    files = configure.files(settings, reached(metadata), names.CONTROLLER)
    first = not system.path(f"{names.ETC}/slurm.conf").exists()
    if first:  # later changes are the daemon's: it sees which hosts they would take from under a job
        configure.write(system, files)
    if desired.accounting:
        _step("accounting")
        configure.write(system, {conf.SLURMDBD: files[conf.SLURMDBD]})
        accounting.start(system, settings, _BUNDLES / metadata.value(names.BUNDLE_KEY))
        # Before slurmctld starts: it misses an account that is added while it makes itself known to slurmdbd.
        accounting.limits(system, settings, files[conf.SLURM])
    _step("slurmctld")
    configure.start(system, changed=False)


def _answers(system: System, address: str) -> None:
    """Wait for slurmctld, which systemd starts again where it ends; the keeper runs meanwhile."""
    _step("slurmctld's answer")
    try:
        patiently(lambda: configure.answers(system, address))
    except SlurmError as error:
        line = ["journalctl", "_SYSTEMD_UNIT=slurmctld.service", "--lines=20", "--output=cat"]
        lines = system.run(line).splitlines() or ["nothing"]
        last = next((line for line in reversed(lines) if "fatal:" in line), lines[-1])
        raise SlurmError(f"{error}; its log ends with: {last[:300]}") from None


def _login(metadata: Metadata, settings: Settings, system: System, client: Client) -> None:
    _step("munge's key")
    secret = metadata.value(names.MUNGE_KEY)
    key = munge.read(client, secret)
    if key is None:
        raise SlurmError(f"{secret}: it has no version yet: the controller adds it at its first boot")
    munge.install(system, key)
    configure.write(system, configure.files(settings, reached(metadata), names.LOGIN))
    _step("/home")
    disk.mount(system, metadata.value(names.HOME_KEY))
    _step("slurmctld's answer")
    configure.answers(system, metadata.value(names.CONTROLLER_KEY))


def _unit(system: System, name: str, text: str) -> None:
    """Start a daemon anew: its program may be another one."""
    system.write(f"/etc/systemd/system/{name}", text)
    system.run(["systemctl", "daemon-reload"])
    system.start(name, again=True)


def _step(text: str) -> None:
    _LOG.info("%s", text)

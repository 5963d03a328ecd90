"""A real slurmctld with munge, from the pinned packages, with the files of a cluster's settings.

It is for a process that is alone in its namespaces (`NAMESPACES`): the packages lie over the machine's own
folders there, and only this process and its children see them. Hosts there are none: what Slurm asks for
stays asked for, unless a test starts slurmd as one of them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from infra.layers.slurm import names
from infra.layers.slurm.slices import Reached
from infra.publish import debian
from infra.settings.schema import Settings
from infra.settings.sources import ROOT
from slurm import boot, configure
from slurm.errors import SlurmError
from slurm.machine import call
from slurm.system import System
from tests.limits import HANG_S

NAMESPACES = (
    *("unshare", "--mount", "--propagation", "private", "--net", "--uts", "--ipc"),
    *("--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
)
ADDRESS = "10.9.0.2"
REACHED = Reached(ADDRESS, f"{ADDRESS}:/home")
_LOGIN = "/etc/slurm-login"
_COVERED = ("/usr", "/etc", "/var", "/opt", "/run")
_USERS = {"munge": 64001, "slurm": 64030, "ada": 64100}
"""As on machines (infra/layers/slurm/startup/machine.sh), and a person."""


def inside(module: str, *arguments: str) -> str:
    """Run a module in namespaces of its own, which reach no mirror of Debian; return what it printed."""
    _archive()
    line = [*NAMESPACES, sys.executable, "-m", module, *arguments]
    return subprocess.run(line, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def _archive() -> Path:
    """Return the packages of Slurm as one archive; downloads those that no earlier run has."""
    packages = debian.locked(ROOT / "tools/slurm/packages.txt")
    return debian.archive([package for package in packages if package.archive == "slurm"])


class Slurmctld:
    """The controller's Slurm, in the namespaces of this process."""

    def __init__(self, folder: Path, settings: Settings):
        """Lay the packages over the machine's folders, and write the cluster's files; nothing runs yet."""
        self.settings = settings
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lay(folder)
        self._connect()
        system = self.system = System(run=self._run)
        for name, number in _USERS.items():
            for file, line in (
                ("passwd", f"{name}:x:{number}:{number}::/tmp:/bin/bash"), ("group", f"{name}:x:{number}:")
            ):  # fmt: skip
                with Path(f"/etc/{file}").open("a") as opened:
                    opened.write(f"{line}\n")
        for path, mode, owner in (
            ("/etc/munge", 0o700, "munge"),
            ("/var/lib/munge", 0o711, "munge"),
            ("/var/log/munge", 0o700, "munge"),
            ("/run/munge", 0o755, "munge"),
            (names.STATE_SAVE, 0o700, "slurm"),
            (names.REQUESTS, 0o700, "slurm"),
        ):
            system.folder(path, mode=mode, owner=owner)
        system.write("/etc/munge/munge.key", os.urandom(128), mode=0o400, owner="munge")
        for path, verb in boot._VERBS.items():
            system.write(path, boot._POWER.format(verb=verb), mode=0o755)
        configure.write(system, configure.files(settings, REACHED, names.CONTROLLER))
        for name, text in configure.files(settings, REACHED, names.LOGIN).items():
            system.write(f"{_LOGIN}/{name}", text)

    @staticmethod
    def _lay(folder: Path) -> None:
        made = folder / "packages"
        with tarfile.open(_archive()) as archive:
            archive.extractall(made, filter="tar")
        call(["mount", "-t", "tmpfs", "tmpfs", "/mnt"])
        for path in _COVERED:
            upper, work = Path(f"/mnt{path}/upper"), Path(f"/mnt{path}/work")
            upper.mkdir(parents=True)
            work.mkdir()
            lower = f"{path}:{made}{path}" if (made / path[1:]).is_dir() else path
            call(["mount", "-t", "overlay", "overlay", "-o",
                  f"lowerdir={lower},upperdir={upper},workdir={work}", path])  # fmt: skip
        call(["ldconfig"])
        # The programs that slurmctld calls run as its user, who can't look into root's folders.
        for path, source in (("/opt/tpu/venv", sys.base_prefix), (boot.PROGRAM, str(ROOT))):
            Path(path).mkdir(parents=True)
            call(["mount", "--bind", source, path])

    def _connect(self) -> None:
        """Give the machine an address: with loopback alone, Slurm can't resolve one."""
        host = names.controller(self.settings)
        for line in (
            "ip link set lo up", "ip link add slurm0 type veth peer name slurm1", "ip link set slurm1 up",
            f"ip address add {ADDRESS}/24 dev slurm0", "ip link set slurm0 up",
        ):  # fmt: skip
            call(line.split())
        socket.sethostname(host)
        with Path("/etc/hosts").open("a") as hosts:
            hosts.write(f"{ADDRESS} {host}\n")

    def _run(self, line: Sequence[str], timeout_s: float = 60.0, text: str | None = None) -> str:
        """Run a program; units are started as processes of this one."""
        if line[0] != "systemctl":
            return call(line, timeout_s, text)
        verb, unit = line[1], line[-1]
        if verb == "restart" and unit in self._processes:
            self.stop(unit)
        if verb in ("start", "restart"):
            self.start(unit)
        return ""

    def start(self, unit: str = "slurmctld.service") -> None:
        """Start munge or slurmctld, and wait until it answers."""
        line, answers = {
            "munge.service": (["munged", "--foreground"], ["munge", "--no-input"]),
            "slurmctld.service": (["slurmctld", "-D"], ["scontrol", "ping"]),
        }[unit]
        before = {"preexec_fn": _as("munge")} if unit == "munge.service" else {}
        with Path("/var/log", f"{unit}.out").open("ab") as output:
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **before  # type: ignore[call-overload]
            )  # fmt: skip
        self._processes[unit] = process
        until("UP" if unit == "slurmctld.service" else "", answers)

    def kill(self, unit: str = "slurmctld.service") -> None:
        """Kill a daemon, as a loss of power does."""
        if process := self._processes.pop(unit, None):
            process.kill()
            process.wait(HANG_S)

    def stop(self, unit: str = "slurmctld.service") -> None:
        """End a daemon, which saves its state."""
        process = self._processes.pop(unit)
        process.terminate()
        process.wait(HANG_S)

    def pid(self, unit: str = "slurmctld.service") -> int:
        """Return a daemon's process id."""
        return self._processes[unit].pid

    def submit(self, *options: str, script: str = "#!/bin/sh\nsleep 600\n") -> str:
        """Submit a job of the person's; return its id."""
        done = self._sbatch(options, script)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refused(self, *options: str, script: str = "#!/bin/sh\nsleep 600\n") -> str:
        """Return what sbatch says to a job that can't be."""
        done = self._sbatch(options, script)
        assert done.returncode != 0, f"{options}: taken as {done.stdout}"
        return done.stderr

    @staticmethod
    def _sbatch(options: Sequence[str], script: str) -> subprocess.CompletedProcess[str]:
        line = ["setpriv", "--reuid=ada", "--regid=ada", "--clear-groups", "sbatch", "--parsable",
                "--chdir=/tmp", "--output=/dev/null", *options]  # fmt: skip
        login = {**os.environ, "SLURM_CONF": f"{_LOGIN}/slurm.conf"}
        return subprocess.run(line, env=login, input=script, capture_output=True, text=True, check=False)

    def close(self) -> None:
        """End the daemons."""
        for unit in [*self._processes]:
            self.kill(unit)


def _as(name: str) -> object:
    number = _USERS[name]

    def become() -> None:
        os.setgid(number)
        os.setuid(number)

    return become


def until(expected: str, line: Sequence[str]) -> str:
    """Run a command until it succeeds and prints something; return its output."""
    end_s = time.monotonic() + HANG_S
    while True:
        try:
            if expected in (output := call(line)):
                return output
        except SlurmError:
            output = ""
        assert time.monotonic() < end_s, f"{line}: {output}"
        time.sleep(0.05)


def available() -> str:
    """Return why slurmctld can't run here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root"
    return "" if shutil.which("unshare") else "needs unshare"

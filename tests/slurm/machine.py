"""A machine below a folder: what programs do to it is simulated, but for blkid and mkfs, which are real."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests

from infra.google.client import Client
from infra.layers.slurm import names
from slurm.disk import DEVICE
from slurm.errors import SlurmError
from slurm.system import System
from tests.slurm import lab

SECRET = "projects/my-project/secrets/slurm-dev-munge"


class DiesError(BaseException):
    """Power fails."""


class Machine(System):
    """A machine whose power may fail before its n-th program.

    Attributes:
        lines: of programs, in order.
        dies_at: the number of the program; 0: none.
        fails: words of a program that fails, with its message.
        prints: words of a program, with its output.
    """

    def __init__(self, root: Path):
        super().__init__(root, self._run)
        self.lines: list[str] = []
        self.mounts: dict[str, str] = {}
        self.started: set[str] = set()
        self.dies_at, self.calls, self.fails = 0, 0, dict[str, str]()
        self.prints: dict[str, str] = {}
        self.disk = root / "disk"

    def attach(self, mib: int = 64) -> None:
        """Attach an empty state disk."""
        with self.disk.open("wb") as file:
            file.truncate(mib << 20)
        self.path(DEVICE).parent.mkdir(parents=True)
        self.path(DEVICE).symlink_to(self.disk)

    def reboot(self) -> None:
        """Lose mounts and processes."""
        self.mounts.clear()
        self.started.clear()
        self.calls = 0

    def _run(self, line: Sequence[str], timeout_s: float = 60.0, text: str | None = None) -> str:
        self.calls += 1
        if self.calls == self.dies_at:
            raise DiesError
        variables = line[1] if line[0] == "env" else ""
        line = line[2:] if variables else line
        shown = " ".join(line)
        self.lines.append(shown)
        for words, why in self.fails.items():
            if words in shown:
                raise SlurmError(f"{line[0]}: {why}")
        for words, output in self.prints.items():
            if words in shown:
                return output
        if line[0] == "findmnt":
            return f"{self.mounts[line[-1]]}\n" if line[-1] in self.mounts else self._no()
        if line[0] == "mount":
            self.mounts[line[-1]] = line[-2]
        if line[0] == "mkfs.ext4" or "blkid" in shown:
            real = [word.replace(DEVICE, str(self.disk)) for word in line]
            return subprocess.run(real, capture_output=True, text=True, check=True).stdout
        if line[-1] == "slurmdbd.service" and not self.path(f"{names.ETC}/slurmdbd.conf").exists():
            raise SlurmError(
                "its unit has ConditionPathExists=/etc/slurm/slurmdbd.conf"
            )  # and starts nothing
        if line[0] == "sacctmgr":
            file = self.path(variables.removeprefix("SLURM_CONF=") or f"{names.ETC}/slurm.conf")
            if "AccountingStorageType=accounting_storage/slurmdbd" not in file.read_text():
                raise SlurmError("You are not running a supported accounting_storage plugin")
        if line[0] == "systemctl" and line[1] in ("start", "restart"):
            self.started.add(line[2])
        if line[0] == "mariadb-install-db":
            (self.path(names.STATE) / "mysql.new" / "ibdata1").touch()
        return "Slurmctld(primary) at slurm-dev-controller is UP" if line[0] == "scontrol" else ""

    @staticmethod
    def _no() -> str:
        raise SlurmError("findmnt: status 1: no output")


class Secrets:
    """Secret Manager behind the session of a client.

    Attributes:
        versions: of the one secret.
        loses: answers to additions that don't come.
    """

    def __init__(self, *versions: bytes):
        self.versions, self.loses = [*versions], 0
        self.client = Client("my-project", self, sleep=lambda _: None)  # type: ignore[arg-type]

    def request(self, method: str, url: str, **given: Any) -> requests.Response:
        answer = requests.Response()
        answer.status_code = 200
        if url.endswith(":addVersion"):
            self.versions.append(b64decode(json.loads(given["data"])["payload"]["data"]))
            body: Any = {"name": f"{SECRET}/versions/{len(self.versions)}"}
            if self.loses:
                self.loses -= 1
                raise requests.ConnectionError("connection reset")
        elif self.versions:
            body = {"payload": {"data": b64encode(self.versions[-1]).decode()}}
        else:
            answer.status_code = 404
            body = {"error": {"message": f"Secret Version [{SECRET}/versions/latest] not found."}}
        answer._content = json.dumps(body).encode()
        return answer


class Attributes:
    """Metadata of a machine of the cluster."""

    def __init__(self, **more: str):
        self.values = {
            names.CONTROLLER_KEY: lab.REACHED.controller, names.HOME_KEY: lab.REACHED.home,
            names.MUNGE_KEY: SECRET, names.ENVIRONMENT_KEY: "dev", names.STACK_KEY: "0123abc",
            names.BUNDLE_KEY: "0" * 64, names.PROGRAM_KEY: f"slurm-dev/programs/a.zip {'0' * 64}", **more,
        }  # fmt: skip

    def value(self, key: str) -> str:
        return self.values[key]


ACCOUNTS = {"slurm:accounting": True, "slurm:accounts": [{"name": "vision", "users": ["ada"]}]}
__all__ = ["ACCOUNTS", "SECRET", "Attributes", "DiesError", "Machine", "Secrets"]

"""Every role that the docs tell an account to ask for is needed: without it a command fails and names it, and
with it the same command doesn't.

Real are the Pulumi CLI, the program, the commands and the emulated cloud's IAM. Machines do nothing, so SSH
ends at the tunnel.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.doctor.grants import resource
from infra.engine import registry
from infra.engine.roles import ACCOUNTS, CI, ML, PLATFORM, roles
from infra.engine.settings import from_file
from infra.google.role import Role
from infra.settings.schema import Settings
from rehearsal.world import person
from rehearsal.world.checkout import copy_program
from tests.infra.lab import PROJECT, SETTINGS, Lab
from tests.proofs import opened

WITHOUT_ASKING = ("--yes", "--skip-preview")
CONDITIONAL = "  storage:controllerAccountId: tpu-fleet\n  storage:stateKeyRing: pulumi\n"
DIAL = f"{sys.executable} -m rehearsal.world.dial {{node}}-w{{worker}} 22 {{command}}"
# What an ML engineer types, by the role that it needs.
TYPED = {
    "roles/tpu.admin": ("recover", "dev", "--yes"),
    "roles/iam.serviceAccountUser": ("recover", "dev", "--yes"),
    "roles/logging.viewer": ("doctor", "dev"),
    "roles/storage.objectViewer": ("doctor", "dev"),
    "roles/compute.osAdminLogin": ("exec", "dev", "--partial", "--", "true"),
    "roles/iap.tunnelResourceAccessor": ("exec", "dev", "--partial", "--", "true"),
}


@dataclass(frozen=True)
class Row:
    """Outcome without a role; `line`: the line that names it."""

    account: str
    role: str
    on: str
    command: str
    line: str
    took_s: float


class Office:
    """A lab whose accounts hold their roles and no more."""

    def __init__(self, folder: Path, more: str = "") -> None:
        (folder / "settings").mkdir()
        text = SETTINGS.replace("  tpu:slices:\n", f"{more}  fleet:ssh: {json.dumps(DIAL)}\n  tpu:slices:\n")
        (folder / "settings/Pulumi.dev.yaml").write_text(text)
        self.settings: Settings = from_file("dev", folder / "settings")
        people = {
            person.PEOPLE[who]: {
                "refresh_token": who,
                "roles": [[role.name, resource(role, self.settings)] for role in roles(who, self.settings)],
            }
            for who in ACCOUNTS
        }
        self.lab = Lab(folder, people=people)
        self.lab.settings.write_text(text)
        self._owner = dict(self.lab.environment)
        self._tree = folder / "tree"
        self.close = self.lab.close

    def infra(self, account: str, *words: str, fine: bool = True) -> str:
        """Run `tpu infra` as an account; return its output."""
        token = self.lab.cloud.iam.mint(person.PEOPLE[account], lifetime_s=1e9).value
        self.lab.environment = {**self._owner, "GOOGLE_OAUTH_ACCESS_TOKEN": token}
        try:
            return self.lab.infra(*words, fine=fine)
        finally:
            self.lab.environment = self._owner

    def fleet(self, *words: str, fine: bool | None = True) -> str:
        """Run `tpu fleet` as an ML engineer in a tree with the lab's settings; return its output."""
        if not self._tree.exists():
            copy_program(self._tree)
        (self._tree / "Pulumi.dev.yaml").write_text(self.lab.settings.read_text())
        login = person.write_login(self._tree, ML, ML, PROJECT)
        token = self.lab.cloud.iam.mint(person.PEOPLE[ML], lifetime_s=1e9).value
        self.lab.environment = {
            **self._owner, **person.login(ML, login.parent), "GOOGLE_OAUTH_ACCESS_TOKEN": token,
            "PYTHONPATH": str(self._tree), "REHEARSAL_CONTROL": str(self.lab.folder / "control"),
        }  # fmt: skip
        line = [sys.executable, "-m", "tests.proofs.as_person", str(self.lab.cloud.port), "fleet", *words]
        try:
            return self.lab.run("env", f"--chdir={self._tree}", *line, fine=fine)
        finally:
            self.lab.environment = self._owner

    @contextmanager
    def without(self, account: str, role: Role) -> Iterator[None]:
        """The account lacks the role for a while."""
        iam, on = self.lab.cloud.iam, resource(role, self.settings)
        member = person.PEOPLE[account]

        async def hold(held: bool) -> None:
            policy = iam.policy(on)
            for binding in policy["bindings"]:
                if binding["role"] == role.name:
                    binding["members"] = [who for who in binding["members"] if not who.endswith(f":{member}")]
            if held:
                kind = "serviceAccount" if member.endswith("gserviceaccount.com") else "user"
                policy["bindings"].append({"role": role.name, "members": [f"{kind}:{member}"]})
            iam.set_policy(on, policy)

        self.lab.call(hold(False))
        try:
            yield
        finally:
            self.lab.call(hold(True))

    def missed(self, account: str, role: Role, *words: str) -> Row:
        """A command fails without the role, and names it. AssertionError otherwise."""
        begun, on_fleet = time.monotonic(), account == ML
        with self.without(account, role):
            text = self.fleet(*words, fine=False) if on_fleet else self.infra(account, *words, fine=False)
        (output,) = [line.strip() for line in text.splitlines() if role.name in line][:1] or [""]
        assert output, f"nothing names {role.name}:\n{text}"
        command = f"python -m {'fleet' if on_fleet else 'infra'} {' '.join(words)}"
        return Row(account, role.name, role.on, command, output, round(time.monotonic() - begun, 1))


def measure(report: Callable[[str], None]) -> dict[str, Any]:
    """A row for each role of each account."""
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        report(f"{row.account} without {row.role} on the {row.on}: {row.line}")

    for role in storage():
        with opened(Office, CONDITIONAL if role.setting else "") as item:
            keep(item.missed(PLATFORM, role, "up", "dev", "storage", *WITHOUT_ASKING))
            item.infra(PLATFORM, "up", "dev", "storage", *WITHOUT_ASKING)
    with opened(Office) as item:
        item.infra(PLATFORM, "up", "dev", "storage", *WITHOUT_ASKING)
        item.lab.publish()
        for layer in registry.layers()[1:]:
            up = ("up", "dev", layer.name, *WITHOUT_ASKING)
            for role in layer.roles:
                keep(item.missed(PLATFORM, role, *up))
            if layer.name != "tpu":
                item.infra(PLATFORM, *up)
        for role in roles(CI):
            keep(item.missed(CI, role, "up", "dev", "tpu", *WITHOUT_ASKING))
        item.infra(CI, "up", "dev", "tpu", *WITHOUT_ASKING)
        for role in roles(ML):
            words = TYPED.get(role.name, ("status", "dev"))
            if words[0] == "recover" and item.lab.cloud.nodes.all()[0].state == "READY":
                item.lab.call(item.lab.cloud.nodes.preempt("one", notice=False))
            keep(item.missed(ML, role, *words))
            assert role.name not in item.fleet(*words, fine=None), f"{role.name} is named though it is held"
    return {"rows": [vars(row) for row in rows], "seconds": sum(row.took_s for row in rows)}


def storage() -> tuple[Role, ...]:
    """The roles of the first layer, which all others stand on."""
    return registry.layers()[0].roles

"""Roles of the machines at first and later boots, and when the power fails at any step."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.layers.slurm import names
from infra.settings.schema import Settings
from slurm import boot, configure, disk, munge, system
from slurm.daemon import Files
from slurm.errors import SlurmError
from slurm.keep import declared
from tests.slurm import lab
from tests.slurm.machine import ACCOUNTS, SECRET, Attributes, DiesError, Machine, Secrets
from workload.host import unit

KEY, CLUSTER = b"k" * 128, "slurm-dev"
_PARTITIONS = """
import sys
with open(sys.argv[1], "r+b") as disk:
    disk.seek(446)
    disk.write(bytes([0, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 32, 0, 0]))
    disk.seek(510)
    disk.write(bytes([0x55, 0xAA]))
"""
_TABLE = [sys.executable, "-c", _PARTITIONS]


@pytest.fixture(autouse=True)
def _owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "chown", lambda *_: None)  # the users come with the start-up script
    monkeypatch.setattr(system.shutil, "chown", lambda *_: None)


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.attach()
    return machine


def up(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, secrets: Secrets, role: str = names.CONTROLLER,
    given: dict[str, Any] | None = None,
) -> Settings:  # fmt: skip
    settings = lab.settings(given)
    monkeypatch.setattr(boot, "from_file", lambda _: settings)
    boot.boot(role, Attributes(), machine, secrets.client)  # type: ignore[arg-type]
    return settings


def state(machine: Machine) -> dict[str, str]:
    """Return the files of the machine, without the disk's own."""
    files = (path for path in machine.root.rglob("*") if path.is_file() and path != machine.disk)
    return {
        path.relative_to(machine.root).as_posix(): path.read_text("latin-1")
        for path in files
        if not path.is_symlink()
    }


def test_a_controller_comes_up_and_a_second_boot_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    secrets = Secrets()
    settings = up(monkeypatch, machine, secrets)
    assert machine.mounts == {names.STATE: disk.DEVICE, "/home": names.HOME_EXPORT}
    assert {"munge.service", "nfs-server.service", "slurmctld.service", boot.KEEPER} <= machine.started
    assert not configure.differing(machine, configure.files(settings, lab.REACHED, names.CONTROLLER))
    assert len(secrets.versions) == 1
    assert len(secrets.versions[0]) == 128
    key = machine.path("/etc/munge/munge.key")
    assert key.read_bytes() == secrets.versions[0] == machine.path(munge.COPY).read_bytes()
    assert stat.S_IMODE(key.stat().st_mode) == 0o400
    assert "slurm-dev-login-0" in machine.path("/etc/exports").read_text()
    before = state(machine)
    machine.reboot()
    machine.lines.clear()
    up(monkeypatch, machine, secrets)
    assert state(machine) == before
    assert len(secrets.versions) == 1
    assert not [line for line in machine.lines if line.startswith("mkfs")], "never a second time"


def test_home_is_exported_anew_once_dns_has_a_login_node_and_when_its_address_changes(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    addresses: dict[str, str] = {}

    def resolve(name: str) -> str:
        if name not in addresses:
            raise OSError(f"{name}: not known")
        return addresses[name]

    exports = disk.Exports(machine, lab.settings({"slurm:loginCount": 2}), resolve)

    def exported() -> int:
        machine.lines.clear()
        exports.apply(None)
        return machine.lines.count("exportfs -ra")

    assert [exported(), exported()] == [1, 0]
    first, second = (f"slurm-dev-login-{number}.us-east5-b.c.my-project.internal" for number in range(2))
    addresses[first] = "10.0.0.2"
    assert [exported(), exported()] == [1, 0]
    addresses |= {first: "10.0.0.3", second: "10.0.0.4"}
    machine.fails["exportfs"] = "no memory"
    assert [exported(), exported()] == [1, 1]
    assert "no memory" in caplog.text
    del machine.fails["exportfs"]
    assert [exported(), exported()] == [1, 0]


def test_power_that_fails_at_any_step_is_made_good_by_the_next_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = Machine(tmp_path / "whole")
    whole.root.mkdir()
    whole.attach()
    up(monkeypatch, whole, Secrets(KEY), given=ACCOUNTS)
    steps, expected = whole.calls, state(whole)
    assert steps > 20
    for number in range(1, steps + 1):
        machine = Machine(tmp_path / str(number))
        machine.root.mkdir()
        machine.attach(8)
        machine.dies_at = number
        with pytest.raises(DiesError):
            up(monkeypatch, machine, Secrets(KEY), given=ACCOUNTS)
        machine.dies_at = 0
        machine.reboot()
        up(monkeypatch, machine, Secrets(KEY), given=ACCOUNTS)
        assert state(machine) == expected, f"after {number} programs"
        assert machine.started == whole.started
        shutil.rmtree(machine.root)


@pytest.mark.parametrize(("tool", "names_it"), [
    (["mkswap"], "swap"), (["mke2fs", "-q", "-t", "ext3"], "ext3"), (_TABLE, "a partition table"),
])  # fmt: skip
def test_a_disk_with_anything_on_it_is_not_formatted(
    machine: Machine, tool: list[str], names_it: str
) -> None:
    subprocess.run([*tool, machine.disk], capture_output=True, check=True)
    content = machine.disk.read_bytes()
    with pytest.raises(SlurmError, match=rf"holds .*{names_it}.*nothing was formatted"):
        disk.state(machine, CLUSTER)
    assert machine.disk.read_bytes() == content
    assert not machine.mounts


def test_a_disk_that_isnt_attached_is_waited_for_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, pauses = Machine(tmp_path), list[float]()
    monkeypatch.setattr(disk, "_ATTACHED_S", 0.0)
    with pytest.raises(SlurmError, match="no such disk is attached"):
        disk.state(machine, CLUSTER, pauses.append)

    def attach(_: float) -> None:
        machine.attach()

    monkeypatch.setattr(disk, "_ATTACHED_S", 60.0)
    disk.state(machine, CLUSTER, attach)
    assert names.STATE in machine.mounts


def test_a_state_disk_of_an_earlier_stack_is_taken_with_its_key(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    first = Secrets()
    up(monkeypatch, machine, first)
    machine.reboot()
    again = Secrets()  # the stack was destroyed, and is up again
    up(monkeypatch, machine, again)
    assert again.versions == first.versions


def test_a_state_disk_of_another_cluster_is_refused_before_slurmctld_ends_over_it(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    up(monkeypatch, machine, Secrets(KEY))
    file = machine.path(f"{names.STATE_SAVE}/clustername")
    file.write_text(CLUSTER)  # as slurmctld does
    machine.reboot()
    up(monkeypatch, machine, Secrets(KEY))
    machine.reboot()
    with pytest.raises(SlurmError) as caught:
        up(monkeypatch, machine, Secrets(KEY), given={"slurm:name": "slurm-lab"})
    of = "/var/lib/slurm-state/slurmctld/clustername"
    assert str(caught.value) == (
        f"{of}: the state disk is that of the cluster slurm-dev, not slurm-lab\n"
        f"    fix: slurm:name: slurm-dev; or on the controller, to give its jobs to slurm-lab: sudo rm {of}"
    )
    assert "slurmctld.service" not in machine.started


@pytest.mark.parametrize(("journal", "last"), [
    ("error: a\nfatal: no\nMore of it.\n", "fatal: no"), ("a\nb\n", "b"), ("", "nothing"),
])  # fmt: skip
def test_a_slurmctld_that_doesnt_answer_fails_the_boot_with_its_last_line(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, journal: str, last: str
) -> None:
    monkeypatch.setattr(system, "ANSWERS_S", 0.0)
    machine.prints |= {"scontrol ping": "Slurmctld(primary) at a is DOWN", "journalctl": journal}
    with pytest.raises(SlurmError) as caught:
        up(monkeypatch, machine, Secrets(KEY))
    shown = "slurmctld at 10.0.0.2 doesn't answer: Slurmctld(primary) at a is DOWN"
    assert str(caught.value) == f"{shown}; its log ends with: {last}"
    assert boot.KEEPER in machine.started, "which goes on once it answers"


def test_a_slurmctld_that_takes_a_while_is_waited_for(machine: Machine) -> None:
    machine.fails["scontrol ping"] = "Unable to contact slurm controller"
    system.patiently(lambda: configure.answers(machine, "10.0.0.2"), lambda _: machine.fails.clear())
    assert machine.lines == ["scontrol ping"] * 2


def test_a_key_that_differs_is_one_message_and_nothing_is_started(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    up(monkeypatch, machine, Secrets(KEY))
    machine.reboot()
    with pytest.raises(SlurmError) as caught:
        up(monkeypatch, machine, Secrets(b"x" * 128))
    text = str(caught.value)
    assert text.startswith("munge's key differs: /var/lib/slurm-state/munge.key is another one")
    assert f"sudo rm {munge.COPY}" in text
    assert "gcloud secrets versions add slurm-dev-munge" in text
    assert machine.started == {unit.LOGS}, "which sends the message"


def test_an_addition_whose_answer_is_lost_adds_the_same_key_again(machine: Machine) -> None:
    secrets = Secrets()
    secrets.loses = 1
    key = munge.of_controller(machine, secrets.client, SECRET)
    assert secrets.versions == [key, key]
    assert munge.of_controller(machine, secrets.client, SECRET) == key


@pytest.mark.parametrize("version", [b"short", b"x" * 1025])
def test_a_version_that_is_no_key_is_refused(machine: Machine, version: bytes) -> None:
    with pytest.raises(SlurmError, match="munge takes 32 to 1024"):
        munge.of_controller(machine, Secrets(version).client, SECRET)


def test_a_login_node_mounts_home_and_asks_slurmctld(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    settings = up(monkeypatch, machine, Secrets(KEY), names.LOGIN, ACCOUNTS)
    assert machine.mounts == {"/home": lab.REACHED.home}
    assert machine.started == {"munge.service", boot.KEEPER, unit.LOGS}
    assert not machine.path("/etc/slurm/slurmdbd.conf").exists()
    assert not configure.differing(machine, configure.files(settings, lab.REACHED, names.LOGIN))
    service = machine.path(f"/etc/systemd/system/{boot.KEEPER}").read_text()
    assert "-m slurm keep login" in service
    assert "TPU_STACK_ID=0123abc" in service


@pytest.mark.parametrize(("words", "message"), [
    ("mount -t nfs", "/home isn't mounted: 10.0.0.2:/home: mount: refused\n    fix: see whether"),
    ("scontrol ping", "scontrol: refused"),
])  # fmt: skip
def test_a_login_node_that_lacks_the_controller_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, message: str
) -> None:
    machine = Machine(tmp_path)
    machine.fails[words] = "refused"
    with pytest.raises(SlurmError) as caught:
        up(monkeypatch, machine, Secrets(KEY), names.LOGIN)
    assert str(caught.value).startswith(message)


def test_a_login_node_before_the_controllers_first_boot_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SlurmError, match="no version yet: the controller adds it"):
        up(monkeypatch, Machine(tmp_path), Secrets(), names.LOGIN)


def test_accounts_have_their_limits_and_the_database_is_made_once(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    up(monkeypatch, machine, Secrets(KEY), given=ACCOUNTS)
    assert {"mariadb.service", "slurmdbd.service"} <= machine.started
    assert "sacctmgr --immediate add account vision Cluster=slurm-dev" in machine.lines
    assert stat.S_IMODE(machine.path("/etc/slurm/slurmdbd.conf").stat().st_mode) == 0o600
    machine.reboot()
    machine.lines.clear()
    machine.fails["sacctmgr --immediate add"] = "status 1: Nothing new added."
    up(monkeypatch, machine, Secrets(KEY), given=ACCOUNTS)
    assert not [line for line in machine.lines if line.startswith("mariadb-install-db")]


def test_accounting_comes_to_a_cluster_that_is_up_before_slurmctld_reads_of_it(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    up(monkeypatch, machine, Secrets(KEY))
    before = machine.path(f"{names.ETC}/slurm.conf").read_text()
    settings = up(monkeypatch, machine, Secrets(KEY), given=ACCOUNTS)
    assert {"slurmdbd.service", "slurmctld.service", boot.KEEPER} <= machine.started
    assert "sacctmgr --immediate add account vision Cluster=slurm-dev" in machine.lines
    assert machine.path(f"{names.ETC}/slurm.conf").read_text() == before, "the daemon changes it"
    assert configure.differing(machine, configure.files(settings, lab.REACHED, names.CONTROLLER)) == [
        "slurm.conf"
    ]


def test_a_user_who_is_no_longer_listed_leaves_the_account(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "vision||\nvision|ada|\nvision|bob|\nvision|eve|\ntext|bob|\nroot|root|\n"
    machine.prints["show associations"] = rows
    machine.fails["delete user where Name=eve"] = "status 1: Job(s) active, cancel job(s) before remove"
    teams = [{"name": "vision", "users": ["ada"]}, {"name": "text", "users": ["bob"]}]
    up(monkeypatch, machine, Secrets(KEY), given={**ACCOUNTS, "slurm:accounts": teams})
    of = "user where Name=%s Cluster=slurm-dev"
    changed = machine.lines[machine.lines.index(next(filter(lambda line: "show" in line, machine.lines))) :]
    assert [line.removeprefix("sacctmgr --immediate ") for line in changed if "--immediate" in line] == [
        f"modify {of % 'bob'} set DefaultAccount=text",
        f"delete {of % 'bob'} Account=vision",
        f"delete {of % 'eve'} Account=vision",
        f"modify {of % 'eve'} Account=vision set MaxSubmitJobs=0",
    ]
    assert "eve submits no more to vision, and leaves it at the next start: sacctmgr: status 1" in caplog.text


def test_a_user_who_was_kept_from_submitting_and_is_listed_again_submits(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    machine.prints["show associations"] = "vision|ada|0\nby-hand|ada|0\n"
    up(monkeypatch, machine, Secrets(KEY), given=ACCOUNTS)
    where = "user where Name=ada Cluster=slurm-dev Account"
    assert f"sacctmgr --immediate modify {where}=vision set MaxSubmitJobs=-1" in machine.lines
    assert not [line for line in machine.lines if "by-hand" in line]


def test_programs_of_slurm_conf_call_request(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    up(monkeypatch, machine, Secrets(KEY))
    text = machine.path(names.RESUME_FAILED).read_text()
    assert text.endswith(f'/slurm/power.py {names.REQUESTS} resume-failed "$@"\n')
    assert machine.path(names.RESUME).stat().st_mode & 0o111


def test_new_files_wait_for_jobs_on_hosts_that_they_lack(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    before = up(monkeypatch, machine, Secrets(KEY))
    slurm = lab.Nodes(before)
    slurm.set("tpu-1", "ALLOCATED")
    after = lab.settings({"slurm:nodesets": [{**lab.NODESET, "nodeCountDynamicMax": 4}]})
    wanted = configure.files(after, lab.REACHED, names.CONTROLLER)
    files = Files(wanted, declared(after, lab.REACHED), machine)
    machine.lines.clear()
    files.apply(slurm.read())
    files.apply(slurm.read())
    assert configure.differing(machine, wanted)
    assert len([entry for entry in caplog.records if "wait for tpu-1-w0" in entry.message]) == 1
    slurm.set("tpu-1", "IDLE", "POWERING_DOWN")
    files.apply(slurm.read())
    assert not configure.differing(machine, wanted)
    assert machine.lines[-2:] == ["systemctl restart slurmctld.service", "scontrol reconfigure"]
    machine.lines.clear()
    files.apply(slurm.read())
    assert machine.lines == [], "once"
    machine.write(f"{names.ETC}/slurm.conf", "# somebody's")
    files.apply(slurm.read())
    assert machine.lines == [], "the files change with the program alone"


@pytest.mark.parametrize("words", ["systemctl restart slurmctld", "scontrol reconfigure"])
def test_new_files_that_slurmctld_could_not_read_are_read_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, words: str
) -> None:
    slurm = lab.Nodes(up(monkeypatch, machine, Secrets(KEY)))
    after = lab.settings({"slurm:suspendTimeS": 60})
    files = Files(
        configure.files(after, lab.REACHED, names.CONTROLLER), declared(after, lab.REACHED), machine
    )
    machine.fails[words] = "refused"
    files.apply(slurm.read())
    machine.fails.clear()
    machine.lines.clear()
    files.apply(slurm.read())
    assert machine.lines[-2:] == ["systemctl restart slurmctld.service", "scontrol reconfigure"]
    machine.lines.clear()
    files.apply(slurm.read())
    assert machine.lines == []

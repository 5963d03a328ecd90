"""`tpu restart` and `tpu ssh`: the job of all workers at once, and one worker's terminal."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from fleet import hosts as module
from fleet import ssh
from fleet.errors import FleetError
from fleet.remote_exec import RemoteExec
from infra.settings.schema import FleetSettings
from infra.slices.nodes import nodes
from tests.fleet.command import fleet
from tests.fleet.test_exec import EVERYONE, Hosts, _hosts  # noqa: F401
from tests.fleet.world import settings

TRAIN = [f"train-w{k}" for k in range(4)]
RESTARTED = {host: ["stop", "start"] for host in TRAIN}


def fake_sudo(hosts: Hosts) -> Path:
    """A `sudo` that writes down what was asked for, and where."""
    record = hosts.folder / "sudo"
    program = hosts.folder / "bin" / "sudo"
    program.write_text(f'#!/bin/sh\necho "$HOST $*" >>{record}\n')
    program.chmod(0o755)
    return record


def test_a_restart_stops_the_job_on_all_workers_before_it_starts_on_any(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    record = fake_sudo(hosts)
    assert fleet(["restart", "dev", "--yes", "--logs", str(hosts.folder / "logs")]) == 0
    lines = record.read_text().splitlines()
    stopped, started = lines[: len(EVERYONE)], lines[len(EVERYONE) :]
    assert sorted(stopped) == sorted(f"{host} systemctl stop tpu-job" for host in EVERYONE)
    assert sorted(started) == sorted(f"{host} systemctl start tpu-job" for host in EVERYONE)
    assert capsys.readouterr().out.count("8 of 8 ok") == 2


def test_a_job_that_can_not_be_stopped_on_one_worker_is_started_again_on_the_others(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.how("train-w2", "break")
    assert hosts.restart() == 1
    assert hosts.units == RESTARTED | {"train-w2": ["start"]}
    output = capsys.readouterr().err
    assert "the first was train-w2" in output
    assert "not restarted: the job is started again" in output
    assert "may be stopped on" not in output


def test_ctrl_c_between_stop_and_start_leaves_no_job_stopped(
    hosts: Hosts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, interrupts = RemoteExec.run, iter([KeyboardInterrupt, None])

    def interrupted(remote: RemoteExec, command: str) -> Any:
        if " start " in command and (error := next(interrupts)):
            raise error
        return run(remote, command)

    monkeypatch.setattr(RemoteExec, "run", interrupted)
    assert hosts.restart() == 130
    assert hosts.units == RESTARTED
    assert "not restarted: the job is started again" in capsys.readouterr().err


@pytest.mark.parametrize("lost", ["a worker", "everyone", "Ctrl+C"])
def test_workers_on_which_a_job_may_stay_stopped_are_named_with_the_command(
    lost: str, hosts: Hosts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RemoteExec.run

    def broken(remote: RemoteExec, command: str) -> Any:
        if " start " in command and lost == "Ctrl+C":
            raise KeyboardInterrupt
        result = run(remote, command)
        for host in TRAIN if lost == "everyone" else ["train-w1"] if lost == "a worker" else []:
            hosts.how(host, "refuse")
        return result

    monkeypatch.setattr(RemoteExec, "run", broken)
    assert hosts.restart() == (130 if lost == "Ctrl+C" else 1)
    output = capsys.readouterr().err
    named = "on train-w1\n" if lost == "a worker" else "everywhere"
    assert f"error: the job may be stopped {named}" in output
    assert "fix: tpu fleet exec dev --slice train -- sudo systemctl start tpu-job" in output


def test_a_restart_that_reaches_nobody_starts_nothing_that_somebody_has_stopped(hosts: Hosts) -> None:
    hosts.how("train-w3", "refuse")
    assert hosts.restart() == 1
    assert not (hosts.folder / "units").exists()


def test_a_restart_without_a_terminal_asks_for_yes(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet(["restart", "dev", "--slice", "train"]) == 1
    assert "There is no terminal to ask at\n    fix: --yes" in capsys.readouterr().err
    assert not hosts.requests


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines that would have replaced this process."""
    lines: list[list[str]] = []

    def replace(program: str, line: list[str]) -> None:
        assert program == line[0]
        lines.append(line)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", replace)
    monkeypatch.setattr(module.os, "execvp", replace)
    return lines


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train"], ["fakessh", "train", "0"]),
        (["train", "--worker", "3"], ["fakessh", "train", "3"]),
        (["tpu-us-east5-a-1"], ["fakessh", "tpu-us-east5-a-1", "0"]),
        (["train", "--", "ls", "a b"], ["fakessh", "train", "0", "ls 'a b'"]),
        (
            ["train", "--", "hostname; df -h | tail -1"],
            ["fakessh", "train", "0", "hostname; df -h | tail -1"],
        ),
    ],
)
def test_a_login_is_one_worker_and_its_own_terminal(
    words: list[str], line: list[str], hosts: Hosts, executed: list[list[str]]
) -> None:
    with pytest.raises(SystemExit):
        fleet(["ssh", "dev", *words])
    assert executed == [line]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "more than one node for this environment: train, tpu-us-east5-a-0"),
        (["extract"], "more than one node for extract: tpu-us-east5-a-0"),
        (["nowhere"], "no node named nowhere: train, "),
        (["train", "--worker", "4"], "train has workers 0 to 3"),
        (["train", "--worker", "-1"], "train has workers 0 to 3"),
    ],
)
def test_a_login_that_is_not_one_worker_names_those_that_there_are(
    words: list[str],
    message: str,
    hosts: Hosts,
    executed: list[list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fleet(["ssh", "dev", *words]) == 1
    assert message in capsys.readouterr().err
    assert executed == []


def test_a_login_by_gcloud_has_no_command_and_so_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(ssh, "os_login_name", lambda: "ada_example_com")
    target: Any = settings()
    (item, *_) = ssh.workers(nodes(target))
    program = ssh.Ssh(target[FleetSettings].ssh, "my-project", "1")
    assert not [word for word in program.interactive(item) if "--command" in word]
    assert program.interactive(item, "uptime")[-1] == "--command=uptime"


def test_a_forwarded_port_leads_to_the_worker_by_the_program_of_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssh.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(ssh, "os_login_name", lambda: "ada_example_com")
    target: Any = settings()
    (item, *_) = ssh.workers(nodes(target))
    ports = [ssh.Forward(8888, 8888), ssh.Forward(6007, 6006)]
    by_gcloud = ssh.Ssh(target[FleetSettings].ssh, "my-project", "1").interactive(item, "", ports)
    assert by_gcloud[-4:] == [
        "--ssh-flag=-L8888:localhost:8888", "--ssh-flag=-L6007:localhost:6006",
        "--ssh-flag=-oExitOnForwardFailure=yes", "--ssh-flag=-N",
    ]  # fmt: skip
    plain = ssh.Ssh("/usr/bin/ssh -q {node}-w{worker} {command}", "my-project", "1")
    assert plain.interactive(item, "top", ports[:1]) == [
        "/usr/bin/ssh", "-L8888:localhost:8888", "-oExitOnForwardFailure=yes", "-q", "train-w0", "top",
    ]  # fmt: skip
    with pytest.raises(FleetError, match="--forward: fakessh, the program of fleet:ssh, isn't known"):
        ssh.Ssh("fakessh {node} {worker} {command}", "my-project", "1").interactive(item, "", ports)


def test_a_port_that_is_in_use_here_is_refused_with_another(
    hosts: Hosts, executed: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert fleet(["ssh", "dev", "train", "--forward", f"{port}:8888"]) == 1
    message = (
        f"--forward {port}: can't be bound here: Address already in use\n    fix: another port: --forward "
    )
    assert message in capsys.readouterr().err
    assert executed == []


@pytest.mark.parametrize("value", ["0", "65536", "a", "8888:", "1:2:3", "８８８８"])
def test_what_is_no_port_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet(["ssh", "dev", "train", "--forward", value]) == 2
    assert f"{value}: a port of 1 to 65535, or PORT:REMOTE" in capsys.readouterr().err

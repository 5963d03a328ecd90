"""`tpu restart` and `tpu ssh`: the job of all workers at once, and one worker's terminal."""

import os
from pathlib import Path
from typing import Any

import pytest

from fleet import hosts as module
from fleet import ssh
from infra.settings.schema import FleetSettings
from infra.slices.nodes import nodes
from tests.fleet.command import fleet
from tests.fleet.test_exec import EVERYONE, Hosts, _hosts  # noqa: F401
from tests.fleet.world import settings


def fake_sudo(hosts: Hosts, status: int = 0) -> Path:
    """A `sudo` that writes down what was asked for, and where."""
    record = hosts.folder / "sudo"
    program = hosts.folder / "bin" / "sudo"
    program.write_text(f'#!/bin/sh\necho "$HOST $*" >>{record}\nexit {status}\n')
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


def test_a_restart_whose_stop_failed_somewhere_starts_nothing(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    record = fake_sudo(hosts, status=5)
    assert fleet(["restart", "dev", "--yes", "--logs", str(hosts.folder / "logs")]) == 1
    assert "start tpu-job" not in record.read_text()
    assert "8 of 8 failed; the first was" in capsys.readouterr().err


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
    assert program.interactive(item, ["uptime"])[-1] == "--command=uptime"

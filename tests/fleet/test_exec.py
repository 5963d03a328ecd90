"""`fleet exec` over an ssh that works, fails, hangs or is refused, by the name of the host."""

import json
import os
import shlex
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet import remote_exec, ssh
from fleet.errors import FleetError
from fleet.model import ObservedNode, View, WorkerStatus, ZoneView
from infra.settings.schema import FleetSettings
from infra.slices.nodes import nodes
from tests.fleet.command import fleet
from tests.fleet.world import Cloud, enter, settings
from tests.limits import until
from tests.virtual_time import replace_time

# A host's shell gets one string, as sshd gives it. HOST tells commands where they are.
FAKE = """#!/bin/bash
export HOST=$1-w$2 FAKE={folder}
echo "$HOST" >> $FAKE/asked
echo $$ > $FAKE/ssh-$HOST
case "$(cat $FAKE/how/$HOST 2>/dev/null):$3" in
  refuse:*) echo "ssh: connect to host $HOST port 22: Connection refused" >&2; exit 255 ;;
  deny:*) echo "Error while connecting [4033: 'not authorized']." >&2
    echo "proxy dialer did not pass back a connection" >&2; exit 255 ;;
  once:*) rm $FAKE/how/$HOST; exit 255 ;;
  break:*" stop "*) exit 255 ;;
  cut:*sleep*) bash -c "$3" | head -n 1; exit 255 ;;
  hang:*sleep*) sleep 600 ;;
esac
exec bash -c "$3"
"""
EVERYONE = [*(f"train-w{k}" for k in range(4)), *(f"tpu-us-east5-{z}-{n}-w0" for n in (0, 1) for z in "ab")]


class Hosts:
    """Behaviour of the fake ssh, and its calls."""

    def __init__(self, folder: Path, cloud: Cloud):
        self.folder, self.cloud = folder, cloud
        (folder / "how").mkdir()

    def how(self, host: str, status: str) -> None:
        (self.folder / "how" / host).write_text(status)

    @property
    def requests(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().split() if path.exists() else []

    def run(self, *line: str) -> int:
        return fleet(["exec", "dev", "--logs", str(self.folder / "logs"), *line])

    def restart(self) -> int:
        return fleet(["restart", "dev", "--slice", "train", "--yes", "--logs", str(self.folder / "logs")])

    @property
    def units(self) -> dict[str, list[str]]:
        """Verbs of the requests to systemd, by host."""
        mapping: dict[str, list[str]] = {}
        for line in (self.folder / "units").read_text().splitlines():
            host, verb, unit = line.split()
            assert unit == "tpu-job"
            mapping.setdefault(host, []).append(verb)
        return mapping

    def pids(self, what: str) -> list[int]:
        return [int(text) for path in self.folder.glob(f"{what}-*") if (text := path.read_text().strip())]

    def logs(self) -> dict[str, str]:
        return {path.stem: path.read_text() for path in (self.folder / "logs").glob("*/*.log")}


@pytest.fixture(name="hosts")
def _hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    program = tmp_path / "bin" / "fakessh"
    program.parent.mkdir()
    program.write_text(FAKE.format(folder=tmp_path))
    program.chmod(0o755)
    (program.parent / "sudo").write_text(f"#!/bin/sh\necho $HOST $2 $3 >> {tmp_path}/units\n")
    (program.parent / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    target = settings(ssh="fakessh {node} {worker} {command}")
    cloud = Cloud(target)
    enter(monkeypatch, cloud, target)
    monkeypatch.setattr(remote_exec, "_PAUSE_S", 0.01)
    return Hosts(tmp_path, cloud)


def test_every_worker_of_every_member_runs_it_and_has_a_log(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hosts.run("--", "printenv", "HOST") == 0
    output = capsys.readouterr().out
    assert "8 of 8 ok" in output
    logs = hosts.logs()
    assert sorted(logs) == sorted(EVERYONE)
    for name in EVERYONE:
        assert f"\n{name}\n" in logs[name]
        assert [line for line in output.splitlines() if line.split()[:2] == ["ok", name]]


def test_several_words_reach_the_host_as_they_are(hosts: Hosts) -> None:
    statuses = ["a  b", "$HOME; rm -rf /", "it's", '"', "*", "-n"]
    assert hosts.run("--slice", "train", "--", "printf", "<%s>\n", *statuses) == 0
    (item, *_) = hosts.logs().values()
    assert [line for line in item.splitlines() if line.startswith("<")] == [
        f"<{status}>" for status in statuses
    ]


def test_a_single_word_is_a_line_of_shell(hosts: Hosts) -> None:
    assert hosts.run("--slice", "train", "--", "cd /tmp && echo at $PWD # there") == 0
    assert all("at /tmp\n" in log for log in hosts.logs().values())


def test_the_first_failure_in_time_is_named_with_its_last_lines(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    line = (
        'case $HOST in train-w2) echo early; echo "no space left" >&2; exit 3 ;; '
        "tpu-us-east5-a-0-w0) sleep 1.5; echo late; exit 4 ;; esac"
    )
    assert hosts.run("--", line) == 1
    output = capsys.readouterr()
    assert (
        "error: 2 of 8 failed; the first was train-w2: status 3\n    early\n    no space left" in output.err
    )
    assert f"{Path('logs')}/" in output.err
    assert "late" not in output.err
    assert len([line for line in output.out.splitlines() if line.startswith("  failed ")]) == 2
    assert len([line for line in output.out.splitlines() if line.startswith("  ok ")]) == 6


def test_a_worker_that_is_not_reached_keeps_it_from_running_anywhere(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train-w1", "tpu-us-east5-b-1-w0"):
        hosts.how(name, "refuse")
    assert hosts.run("--", f"touch {hosts.folder}/ran-$HOST") == 1
    refused = capsys.readouterr().err
    assert "2 of 8 workers can't be reached; the command was run nowhere" in refused
    for name in ("train-w1", "tpu-us-east5-b-1-w0"):
        reason = "fakessh ended with 255, without a sign that it began"
        assert f"{name}: {reason} ssh: connect to host {name} port 22: Connection refused" in refused
    hosts.how("train-w1", "deny")
    assert hosts.run("--", "true") == 1
    denied = capsys.readouterr().err
    assert "[4033: 'not authorized']. (grant your account roles/iap.tunnelResourceAccessor" in denied
    hosts.how("train-w1", "refuse")
    (hosts.folder / "asked").unlink()
    assert hosts.run("--", f"touch {hosts.folder}/ran-$HOST") == 1
    assert "can't be reached" in capsys.readouterr().err
    assert not list(hosts.folder.glob("ran-*"))
    assert hosts.requests.count("train-w1") == 3
    assert hosts.requests.count("train-w0") == 1

    assert hosts.run("--partial", "--", f"touch {hosts.folder}/ran-$HOST") == 0
    output = capsys.readouterr()
    assert len(list(hosts.folder.glob("ran-*"))) == 6
    assert "6 of 6 ok" in output.out
    assert "left out: train-w1: fakessh ended with 255" in output.err


def test_a_connection_that_fails_once_is_tried_again(hosts: Hosts) -> None:
    hosts.how("train-w1", "once")
    assert hosts.run("--", "true") == 0
    assert not (hosts.folder / "how" / "train-w1").exists()


def test_a_member_that_is_not_ready_keeps_it_from_running_anywhere(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.cloud.states |= {"train": "PREEMPTED", "tpu-us-east5-a-1": ""}
    assert hosts.run("--", "true") == 1
    output = capsys.readouterr().err
    assert "2 of 5 slices aren't known to be READY; the command was run nowhere" in output
    assert "train: it is PREEMPTED" in output
    assert "tpu-us-east5-a-1: us-east5-a has no such node" in output
    assert not hosts.requests
    assert hosts.run("--partial", "--", "true") == 0
    assert sorted(hosts.logs()) == [f"tpu-us-east5-{which}-w0" for which in ("a-0", "b-0", "b-1")]


def test_a_zone_that_does_not_answer_is_not_taken_for_one_without_hosts(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.cloud.silent.add("us-east5-a")
    assert hosts.run("--", "true") == 1
    assert "tpu-us-east5-a-0: us-east5-a didn't answer: unavailable" in capsys.readouterr().err
    assert not hosts.requests
    assert hosts.run("--partial", "--", "true") == 0
    assert sorted(hosts.logs()) == sorted(EVERYONE), "ssh itself says whether they can be reached"


def test_a_commands_own_255_and_a_cut_connection_are_told_apart(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.how("train-w0", "cut")
    line = "case $HOST in train-w3) exit 255 ;; *) : sleep ;; esac"
    assert hosts.run("--slice", "train", "--json", "--", line) == 1
    reported = {worker["worker"]: worker for worker in json.loads(capsys.readouterr().out)["workers"]}
    assert (reported["train-w3"]["ending"], reported["train-w3"]["status"]) == ("failed", 255)
    assert (reported["train-w0"]["ending"], reported["train-w0"]["status"]) == ("lost", None)
    assert "it began there, and may continue" in reported["train-w0"]["why"]
    assert (reported["train-w1"]["ending"], reported["train-w1"]["status"]) == ("ok", 0)


def test_the_host_ends_what_takes_too_long(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    # Were it not ended, the test would be, after 300 s.
    assert hosts.run("--slice", "train", "--timeout-s", "1", "--", "echo waiting; sleep 1000") == 1
    assert "status 124 (not done within 1 s)\n    waiting" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "status"), [("exit 124", 124), ("kill -KILL $$", 137)])
def test_a_command_that_ends_at_once_has_not_taken_too_long(
    line: str, status: int, hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hosts.run("--slice", "train", "--json", "--", line) == 1
    reported = json.loads(capsys.readouterr().out)["workers"]
    assert [(item["ending"], item["status"], item["why"]) for item in reported] == [
        ("failed", status, f"status {status}")
    ] * 4


def test_a_connection_that_hangs_is_ended_and_nothing_is_claimed_of_it(
    hosts: Hosts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_CONNECT_S", 3.0)
    hosts.how("train-w2", "hang")
    assert hosts.run("--slice", "train", "--timeout-s", "1", "--", ": sleep") == 1
    output = capsys.readouterr().err
    assert "the first was train-w2: no answer within 4 s, without a sign that it began" in output


def test_no_more_connections_than_asked_for(hosts: Hosts) -> None:
    (hosts.folder / "now").mkdir()
    line = "mkdir $FAKE/now/$HOST; ls $FAKE/now | wc -l >> $FAKE/most; sleep 0.2; rmdir $FAKE/now/$HOST"
    assert hosts.run("--parallel", "2", "--", line) == 0
    most = [int(count) for count in (hosts.folder / "most").read_text().split()]
    assert (len(most), max(most)) == (8, 2)


def test_ctrl_c_ends_the_connections(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        until(lambda: len(hosts.pids("pid")) >= 4)
        os.kill(os.getpid(), signal.SIGINT)  # to the main thread, which waits in C

    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    line = f"echo $$ > {hosts.folder}/pid-$HOST; exec sleep 600"
    try:
        assert hosts.run("--slice", "train", "--", line) == 130
        assert len(hosts.pids("pid")) == 4
        for pid in hosts.pids("ssh"):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert "4 connections cut; commands that began may continue there" in capsys.readouterr().err
    finally:
        for pid in hosts.pids("pid"):  # as a host's own, it continued
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("line", "message"),
    [([], "no command: it stands behind --"), (["--", "true"], "fleet:ssh: nossh isn't on PATH")],
)
def test_what_can_not_be_begun_is_said(
    line: list[str],
    message: str,
    hosts: Hosts,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enter(monkeypatch, hosts.cloud, settings(ssh="nossh {node} {worker} {command}"))
    assert hosts.run(*line) == 1
    assert message in capsys.readouterr().err
    assert not hosts.requests


def test_a_command_that_no_system_passes_on_is_refused(
    hosts: Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hosts.run("--slice", "train", "--", "echo " + "'" * 100_000) == 1
    output = capsys.readouterr().err
    assert "error: fakessh can't be started: Argument list too long\n    fix: a shorter command" in output


def test_logs_go_where_they_can_be_written(hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    (hosts.folder / "file").touch()
    assert hosts.run("--logs", str(hosts.folder / "file"), "--", "true") == 1
    assert "file: Not a directory\n    fix: another folder" in capsys.readouterr().err
    assert not hosts.requests


def test_the_default_goes_through_identity_aware_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(ssh, "os_login_name", lambda: "ada_example_com")
    target: Any = settings()
    (item, *_) = ssh.workers(nodes(target))
    line = ssh.Ssh(target[FleetSettings].ssh, "my-project", "1").line(item, "echo 'a b'", 5)
    assert line[:-1] == shlex.split(
        "gcloud alpha compute tpus tpu-vm ssh ada_example_com@train --project=my-project --zone=us-east5-b"
        " --tunnel-through-iap --plain --ssh-flag=-i~/.ssh/google_compute_engine"
        " --ssh-flag=-oStrictHostKeyChecking=no --ssh-flag=-oUserKnownHostsFile=/dev/null --worker=0 --quiet"
    )
    assert line[-1].startswith("--command=bash -c ")


@pytest.mark.parametrize(
    ("gcloud", "why"),
    [
        ("echo 'ERROR: no credentialed accounts' >&2; exit 1", "ERROR: no credentialed accounts"),
        ("echo", "no name in the profile"),
    ],
)
def test_a_login_that_gcloud_does_not_know_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gcloud: str, why: str
) -> None:
    (tmp_path / "gcloud").write_text(f"#!/bin/sh\n{gcloud}\n")
    (tmp_path / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(FleetError, match=f"describe-profile .*: {why}\n    fix: gcloud auth login"):
        ssh.Ssh(settings()[FleetSettings].ssh, "my-project", "1")


def test_boots_that_failed_since_it_began_are_said_though_every_command_was_fine(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`systemctl restart google-startup-scripts` ends well whatever the script does."""
    member = nodes(settings())[0]
    observation = hosts.cloud.observe

    def with_boots(zones: Any) -> View:
        view, now_s = observation(zones), time.time()
        old = WorkerStatus(now_s - 900, "rerun-failed", "python", why="an earlier one")
        new = WorkerStatus(now_s + 60, "rerun-failed", "python", why="ImportError: x")
        return replace(view, statuses={**(view.statuses or {}), member.name: [old, new]})

    monkeypatch.setattr(hosts.cloud, "observe", with_boots)
    assert hosts.run("--", "true") == 1
    output = capsys.readouterr()
    assert f"error: {member.name}: its startup script failed at python: ImportError: x" in output.err
    assert "an earlier one" not in output.err


def test_a_job_is_restarted_after_the_boot_of_its_hosts(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts.cloud.statuses["train"] = WorkerStatus(0.0, "booting", "python")
    sleep = time.sleep

    def boot(_: float) -> None:
        sleep(0.01)
        booting = hosts.cloud.statuses["train"].boot == "booting"
        assert not (booting and hosts.requests), "reached during the boot"
        hosts.cloud.statuses["train"] = WorkerStatus(0.0, "ready", "launch")

    with monkeypatch.context() as patched:
        replace_time(patched, "sleep", boot)
        assert hosts.restart() == 0
    assert "waiting for the end of the boot: train\n" in capsys.readouterr().out
    assert hosts.units == {f"train-w{k}": ["stop", "start"] for k in range(4)}


@pytest.mark.parametrize(
    ("boots", "age_s", "booting"),
    [
        (["ready", "ready"], 100, False),
        (["ready", "failed"], 100, False),
        (["ready", "rerun-failed"], 100, False),
        (["ready", "booting"], 100, True),
        (["ready", "rerunning"], 100, True),
        (["ready"], 100, True),
        ([], 100, True),
        (["ready"], 3000, False),
        (["ready", "booting"], 3000, True),
    ],
)
def test_a_node_boots_until_each_of_its_hosts_has_ended_its_startup_script_or_is_silent_for_long(
    boots: list[str], age_s: float, booting: bool
) -> None:
    now_s = 1e6
    node = ObservedNode("train", "us-east5-b", "READY", "1", now_s - age_s)
    reported = [WorkerStatus(now_s - 5, state) for state in boots]
    heartbeats = [WorkerStatus(now_s - 1, work="running")] * 2
    earlier = [WorkerStatus(now_s - age_s - 10, "ready")] * 2
    view = View(now_s, {"us-east5-b": ZoneView({"train": node})}, {"train": reported + heartbeats + earlier})
    assert view.booting(node, 2, 1800) is booting
    lost = [WorkerStatus(now_s - 2000, "booting")] * 2
    old = ObservedNode("train", "us-east5-b", "READY", "1", now_s - 3000)
    assert not View(now_s, {}, {"train": lost}).booting(old, 2, 1800)
    assert not View(now_s, {}, None).booting(old, 2, 1800)

"""The heartbeat of a command that knows nothing of it, from what systemd says of its service."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from workload.host import job_heartbeat
from workload.host.bucket import Bucket
from workload.host.job_heartbeat import JobHeartbeat, Service
from workload.host.unit import heartbeat_unit, job_unit

HOST = {
    "CHECKPOINT_BUCKET": "b",
    "TPU_NAME": "tpu-lab",
    "WORKER_ID": "1",
    "WORKER_COUNT": "4",
    "TPU_COMMAND": "0123456789ab",
}
SHOWN = """\
ActiveState={active}
SubState={sub}
Result={result}
NRestarts=0
InvocationID=aaaa
ExecMainCode={code}
ExecMainStatus={status}
ExecMainStartTimestampMonotonic={began}
"""


def service(
    active: str,
    sub: str,
    result: str = "success",
    code: int = 0,
    status: int = 0,
    began: int = 7,
    stopped: str = "",
) -> Service:
    shown = SHOWN.format(active=active, sub=sub, result=result, code=code, status=status, began=began)
    return Service.parse(shown, stopped)


RUNNING = service("active", "running")
DONE = service("inactive", "dead", code=1)
FAILED = service("activating", "auto-restart", "exit-code", code=1, status=3)


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (service("inactive", "dead", began=0), None),
        (service("activating", "start-pre", began=0), None),
        (
            service("activating", "auto-restart", "exit-code", began=0),
            None,
        ),  # the barrier's end, not the job's
        (service("activating", "start-pre", code=1, status=1), None),
        (RUNNING, "running"),
        (service("deactivating", "stop", code=1), None),
        (DONE, "done"),
        (service("inactive", "dead", code=1, stopped="aaaa"), "stopped"),
        (service("inactive", "dead", code=1, stopped="an earlier one"), "done"),
        (service("inactive", "dead", code=2, status=15), "stopped"),
        (FAILED, "failed"),
        (service("activating", "auto-restart-queued", "signal", code=2, status=9), "failed"),
        (service("failed", "failed", "exit-code", code=1, status=2), "failed"),
    ],
)
def test_what_systemd_says_as_a_state(seen: Service, state: str | None) -> None:
    assert seen.state == state


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return the worker's state in listings, write by write."""
    message: list[dict[str, str]] = []
    monkeypatch.setattr("workload.host.heartbeat.read", lambda _: "4711")
    monkeypatch.setattr("workload.host.heartbeat.write_guest_attribute", lambda *_: None)
    monkeypatch.setattr("workload.host.heartbeat._QUOTA_S", 0.0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    monkeypatch.setattr(
        Bucket, "write_json", lambda _, name, value, metadata: message.append(metadata | {"": name})
    )
    return message


def follow(states: list[Service], line: str = "the last line") -> None:
    """Read once for each, and then end the machine."""
    stopped = threading.Event()
    looks: Iterator[Service] = iter(states)

    def query() -> Service:
        try:
            return next(looks)
        except StopIteration:
            stopped.set()
            return states[-1]

    JobHeartbeat(HOST, lambda: line).follow(query, stopped, pause_s=0.02)


def test_a_job_runs_fails_is_started_again_and_is_done(written: list[dict[str, str]]) -> None:
    again = replace(RUNNING, invocation="bbbb")
    follow([RUNNING, RUNNING, FAILED, FAILED, again, replace(DONE, invocation="bbbb")])
    assert [heartbeat["state"] for heartbeat in written] == ["running", "failed", "running", "done"]
    assert {heartbeat[""] for heartbeat in written} == {"heartbeats/tpu-lab/worker-1"}
    assert {heartbeat["command"] for heartbeat in written} == {"0123456789ab"}
    assert {heartbeat["instance"] for heartbeat in written} == {"4711"}
    assert [heartbeat.get("why") for heartbeat in written] == [
        None,
        "exit status 3: the last line",
        None,
        None,
    ]


def test_a_job_that_is_stopped_by_hand_or_by_the_machines_end_is_not_done(
    written: list[dict[str, str]],
) -> None:
    follow([RUNNING, RUNNING, service("inactive", "dead", code=1, stopped="aaaa")])
    assert [heartbeat["state"] for heartbeat in written] == ["running"]


def test_it_says_why_in_the_words_of_systemd_where_nothing_was_printed(written: list[dict[str, str]]) -> None:
    killed = service("failed", "failed", "signal", code=2, status=9)
    follow([killed, replace(killed, result="start-limit-hit", invocation="b")], line="")
    whys = [heartbeat["why"] for heartbeat in written if heartbeat["state"] == "failed"]
    assert whys == ["killed by signal 9", "failed too often, isn't started again"]


def test_a_systemd_that_does_not_answer_is_asked_again(written: list[dict[str, str]]) -> None:
    stopped, answers = (
        threading.Event(),
        iter([subprocess.TimeoutExpired("systemctl", 20), OSError(), RUNNING]),
    )

    def query() -> Service:
        answer = next(answers, RUNNING)
        if isinstance(answer, Exception):
            raise answer
        threading.Timer(0.1, stopped.set).start()
        return answer

    JobHeartbeat(HOST, str).follow(query, stopped, pause_s=0.01)
    assert [heartbeat["state"] for heartbeat in written] == ["running"]


def test_only_a_command_that_is_not_ours_has_one() -> None:
    assert heartbeat_unit("train tiny.toml") == heartbeat_unit("extract x.toml") == ""
    assert "tpu-heartbeat" not in job_unit("train tiny.toml")
    assert "ExecStop" not in job_unit("train tiny.toml")
    for run in ("python train.py", "./start.sh", "/usr/bin/env A=1 python x.py", "data prepare"):
        assert "Wants=network-online.target tpu-checkpoints.service tpu-heartbeat.service\n" in job_unit(run)
        unit = heartbeat_unit(run)
        assert {"PartOf=tpu-job.service", "CapabilityBoundingSet="} <= set(unit.splitlines())
        (own,) = (line for line in unit.splitlines() if "TPU_COMMAND" in line)
        assert own in job_unit(run)


def test_it_reads_what_this_machines_systemd_would_say(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, ...]] = []

    def output(*command: str) -> str:
        requests.append(command)
        if command[0] == "journalctl":
            return "step 1\nTraceback\nValueError: no good\n\n"
        return SHOWN.format(active="active", sub="running", result="success", code=0, status=0, began=1)

    monkeypatch.setattr(job_heartbeat, "_output", output)
    assert job_heartbeat.query().state == "running"
    assert job_heartbeat.last_line() == "ValueError: no good"
    properties = (
        next(heartbeat for heartbeat in requests[0] if heartbeat.startswith("--property="))
        .partition("=")[2]
        .split(",")
    )
    assert set(properties) == {line.partition("=")[0] for line in SHOWN.splitlines()}

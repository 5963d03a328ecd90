"""Objects that any host or pod may write end no command, and do nothing to a terminal."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st

from fleet import show
from fleet.dashboard import Dashboard
from fleet.google import Google, spoken
from fleet.model import Action, Claim, Condition, Decision, View, WorkerStatus, summarized
from fleet.proof import objection
from fleet.ssh import Ending, Ssh, Worker
from infra.doctor.finding import MISSING, Finding, table
from tests.fleet.command import fleet
from tests.fleet.conftest import fleet as members
from tests.fleet.shown import Shown, view, watching
from tests.fleet.test_show import KNOWN, observation
from tests.fleet.world import Cloud, _world  # noqa: F401
from tests.hostile import EXAMPLES, contents, fuzz, like
from views.console import Terminal
from views.terminal import clean

HEARTBEAT = {
    "state": "running", "samples": "5", "of_samples": "9", "shards": "1", "size_bytes": "12", "loss": "2.5",
    "goodput": "0.9", "command": "ab12", "why": "", "disk": "full", "final": "1", "stage": "launch",
}  # fmt: skip
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b2J\u202e[red]x[/red]"


def item(metadata: Any, name: str = "heartbeats/n/worker-0") -> dict[str, Any]:
    return {"name": name, "updated": "2026-11-21T11:00:00Z", "metadata": metadata}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"samples": "²"}, "samples = '\\xb2': must be"), ({"samples": "9" * 4400}, "samples = '999"),
        ({"shards": "-1"}, "shards = '-1': must be"), ({"loss": "１"}, "loss = '\\uff11': must be"),
        ({"why": 5}, "why = int: must be a text"),
    ],
)  # fmt: skip
def test_a_heartbeat_out_of_its_schema_is_left_out_with_the_reason(changed: dict[str, Any], why: str) -> None:
    good = item(HEARTBEAT, "heartbeats/n/worker-1")
    statuses, unread = spoken([item({**HEARTBEAT, **changed}), good])
    assert [status.samples for status in statuses["n"]] == [5]
    assert unread["heartbeats/n/worker-0"].startswith(why)


def test_status_names_what_it_left_out(world: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    observe, unread = world.observe, {f"heartbeats/n/worker-{n}": "samples = '²'" for n in range(3)}
    world.observe = lambda zones: replace(observe(zones), unread=unread)  # type: ignore[method-assign]
    assert fleet(["status", "dev"]) == 0
    assert "left out: heartbeats/n/worker-0 (samples = '²'), and 2 more objects" in capsys.readouterr().out


def test_a_monitor_reports_an_object_once() -> None:
    several = members(2)
    hostile = replace(view(several), unread={"heartbeats/n/worker-0": "samples = '²'"})
    more = replace(hostile, unread={**hostile.unread, "heartbeats/n/worker-1": "no"})
    controller = watching(Shown(hostile, hostile, more, view(several), more), several)
    events = [event for _ in range(5) for event in controller.step().events if "left out" in event]
    assert events == [
        "left out: heartbeats/n/worker-0 (samples = '²')", "left out: heartbeats/n/worker-1 (no)",
    ]  # fmt: skip


def test_escapes_of_a_host_reach_no_terminal(world: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    world.statuses["train"] = WorkerStatus(0.0, "ready", "launch", "failed", why=ESCAPES, final=True)
    assert fleet(["status", "dev"]) == 0
    output = capsys.readouterr().out
    assert "\\u001b[2J\\u001b]0;owned\\u0007\\u009b2J\\u202e[red]x[/red]" in output
    assert not set("\x1b\x07\x9b\u202e") & set(output)


def failed(status: WorkerStatus | None, why: str) -> Any:
    decision = Decision(KNOWN[0], Action.LEAVE, Condition.WORKING, why, status=status)
    return replace(observation(KNOWN[0]), decisions=[decision], events=[why])


def test_escapes_of_a_host_reach_no_dashboard() -> None:
    file = io.StringIO()
    with Dashboard("fleet dev", Terminal(file=file, force_terminal=True, width=200, height=50)) as dashboard:
        dashboard.show(failed(WorkerStatus(1e6, work="failed", why=ESCAPES), ESCAPES))
    drawn = file.getvalue()
    assert "\x1b[" in drawn, "rich's own"
    assert "\\u001b[2J" in drawn
    assert not [part for part in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\u202e") if part in drawn]


def test_a_message_of_googles_does_nothing_to_the_doctors_table() -> None:
    text = table([Finding("login", MISSING, ESCAPES, f"fix {ESCAPES}")])
    assert clean(text) == text
    assert text.count("\\u001b[2J") == 2


def test_a_status_of_a_host_with_thousands_of_digits_is_none(tmp_path: Path) -> None:
    digits = "9" * 5000
    ssh = Ssh(f"printf 'fleet exec r begun\\nfleet exec r ended %s\\n' {digits}", "p", "r")
    report = ssh.run(Worker(members(1)[0], 0), "true", 5, tmp_path / "log")
    assert (report.ending, report.status) == (Ending.LOST, None)


@EXAMPLES
def test_no_heartbeat_ends_what_reads_it(examples: int) -> None:
    def check(metadata: Any) -> None:
        boot = item(metadata, "boot/n/worker-0.json")
        statuses, unread = spoken([item(metadata), item(HEARTBEAT, "heartbeats/n/worker-1"), boot])
        status = summarized(statuses["n"])
        assert status
        assert len(statuses["n"]) + len(unread) == 3
        observed = failed(status, status.why)
        rows = show.rows(observed, show.Rates())
        json.dumps(show.as_json(observed, rows))
        show.plain(show.table(rows)).encode()
        with Dashboard("fleet dev", Terminal(file=io.StringIO())) as dashboard:
            dashboard.show(observed)
        dashboard.page.encode()

    fuzz(examples, like(HEARTBEAT) | st.sampled_from([None, [], "x", 5]), check)


@EXAMPLES
def test_no_guest_attribute_ends_what_reads_it(examples: int) -> None:
    good, google = {"state": "failed", "updated_s": 5, "why": ""}, Google("p", "b")

    def check(raw: bytes) -> None:
        value = {"namespace": "tpu", "key": "job", "value": raw.decode(errors="replace")}
        workers = [{"queryValue": {"items": [value]}}]
        with mock.patch.object(google, "json", return_value={"guestAttributes": workers}):
            attested = google.attested("us-east5-a", "n")
        text = objection(Claim.WORK_FAILED, attested, "HEALTHY", 1e9, 1800.0)
        assert not attested[0].unread or attested[0].unread in text

    fuzz(examples, contents(good), check)


def test_a_view_without_such_objects_has_no_remark() -> None:
    assert View(0.0, {}, {}).unread == {}
    assert not [line for line in show.remarks(observation(KNOWN[0])) if "left out" in line]

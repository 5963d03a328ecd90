"""Output of boot and job, on its way from the journal to Cloud Logging."""

from __future__ import annotations

import json
import logging
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.limits import HANG_S, until
from tests.served import Received, Reply, serving
from workload.host import logs
from workload.host.errors import LogsError, MetadataError

from .metadata import worker

ROOT = Path(__file__).resolve().parents[5]
SHARED = {"logName": "projects/lab/logs/tpu-host", "labels": {"node": "tpu-lab"}}


def journal_line(number: int, message: Any = None, **fields: str) -> bytes:
    line = {
        "__CURSOR": f"s=1;i={number:x}",
        "__REALTIME_TIMESTAMP": str(1_790_000_000_000_000 + number),
        "MESSAGE": f"line {number}" if message is None else message,
        "PRIORITY": "6",
        "_SYSTEMD_UNIT": "tpu-job.service",
        **fields,
    }
    return json.dumps(line).encode() + b"\n"


class Api:
    """entries.write: answers as told, then well; keeps what it took."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.requests: list[dict[str, Any]] = []
        self.tokens: list[str] = []
        self.url = ""

    def answer(self, request: Received) -> Reply:
        status = self.answers.pop(0) if self.answers else 200
        self.tokens.append(request.headers["Authorization"])
        if status == 200:
            self.requests.append(json.loads(request.body))
        return Reply(status, {})

    @property
    def texts(self) -> list[str]:
        return [entry["textPayload"] for request in self.requests for entry in request["entries"]]


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    with serving(made.answer) as address:
        made.url = f"http://{address}"
        yield made


@pytest.fixture
def infos(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "workload.host")
    return caplog


def shipper(api: Api, stopping: threading.Event) -> logs.Shipper:
    tokens = iter(range(1000))
    return logs.Shipper(
        SHARED,
        stopping,
        server=api.url,
        token=lambda: f"token-{next(tokens)}",
        first_pause_s=0.01,
    )


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a journalctl that shows the lines of a file, from after the cursor on, and waits."""
    program = tmp_path / "bin" / "journalctl"
    program.parent.mkdir()
    lines = tmp_path / "journal"
    program.write_text(f"""#!{sys.executable}
import json, sys, time
open({str(tmp_path / "asked")!r}, "a").write(json.dumps(sys.argv[1:]) + "\\n")
after = [word.partition("=")[2] for word in sys.argv if word.startswith("--after-cursor=")]
show = not after
for line in open({str(lines)!r}, "rb"):
    if show:
        sys.stdout.buffer.write(line)
    show = show or json.loads(line)["__CURSOR"] == after[0]
sys.stdout.flush()
time.sleep(60)
""")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return lines


def test_an_entry_has_text_time_severity_unit_and_the_same_id_each_time() -> None:
    cursor, entry = logs.entry(
        journal_line(1, PRIORITY="3", UNIT="tpu-job.service", _SYSTEMD_UNIT="init.scope")
    )
    assert cursor == "s=1;i=1"
    assert entry == {
        "textPayload": "line 1",
        "timestamp": "2026-09-21T14:13:20.000001Z",
        "severity": "ERROR",
        "insertId": logs.entry(journal_line(1))[1]["insertId"],
        "labels": {"unit": "tpu-job.service"},
    }
    assert logs.entry(journal_line(2))[1]["insertId"] != entry["insertId"]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ([104, 105, 255], "hi\ufffd"),
        ("\u2028", "\u2028"),
        ("", ""),
        ("x" * 40_000, f"{'x' * 32768}… (40000 characters)"),
    ],
)
def test_any_line_is_an_entry(message: Any, text: str) -> None:
    assert logs.entry(journal_line(1, message))[1]["textPayload"] == text


def test_lines_go_together_and_the_cursor_remembers_them(
    api: Api, journalctl: Path, tmp_path: Path, infos: pytest.LogCaptureFixture
) -> None:
    journalctl.write_bytes(b"".join(map(journal_line, range(1200))))
    stopping, cursor = threading.Event(), tmp_path / "cursor"
    running = threading.Thread(target=logs.run, args=(cursor, stopping, shipper(api, stopping)))
    running.start()
    until(lambda: len(api.texts) == 1200)
    until(lambda: cursor.exists() and cursor.read_text() == f"s=1;i={1199:x}")
    assert api.texts == [f"line {number}" for number in range(1200)]
    assert 3 <= len(api.requests) <= 6
    assert api.requests[0].items() >= {**SHARED, "partialSuccess": True}.items()
    stopping.set()
    running.join(HANG_S)
    assert not running.is_alive()

    # Started again, it continues; the first time it had asked for all that there was.
    with journalctl.open("ab") as file:
        file.write(journal_line(1200))
    stopping.clear()
    running = threading.Thread(target=logs.run, args=(cursor, stopping, shipper(api, stopping)))
    running.start()
    until(lambda: len(api.texts) == 1201)
    stopping.set()
    running.join(HANG_S)
    requests = [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
    assert [any(word.startswith("--after-cursor") for word in words) for words in requests] == [False, True]
    assert all(
        {"--follow", "--no-tail", "--unit=google-startup-scripts.service"} <= set(words) for words in requests
    )
    assert infos.messages == []


def test_an_outage_is_waited_out_and_loses_nothing(
    api: Api, journalctl: Path, tmp_path: Path, infos: pytest.LogCaptureFixture
) -> None:
    """A grant that isn't there yet, a busy API, a token that ran out."""
    api.answers = [403, 503, 429, 401]
    journalctl.write_bytes(b"".join(map(journal_line, range(3))))
    stopping, cursor = threading.Event(), tmp_path / "cursor"
    running = threading.Thread(target=logs.run, args=(cursor, stopping, shipper(api, stopping)))
    running.start()
    until(lambda: len(api.texts) == 3)
    assert not api.answers
    assert len(set(api.tokens)) == 5  # each with a fresh one
    stopping.set()
    running.join(HANG_S)
    assert [line.split(":")[0] for line in infos.messages] == [
        "logs can't be sent, will retry",
        "logs are sent again",
    ]


def test_an_api_that_is_not_there_is_waited_for_until_the_host_goes(
    tmp_path: Path, infos: pytest.LogCaptureFixture
) -> None:
    stopping = threading.Event()
    lost = logs.Shipper(SHARED, stopping, server="http://127.0.0.1:9", token=str, first_pause_s=0.05)
    threading.Timer(0.3, stopping.set).start()
    began = time.monotonic()
    with pytest.raises(LogsError, match="1 lines or more weren't sent"):
        lost.send([{}])
    assert time.monotonic() - began > 3
    assert len(infos.messages) == 1


def test_entries_that_are_refused_for_good_hold_up_no_others(
    api: Api, infos: pytest.LogCaptureFixture
) -> None:
    api.answers = [400]
    sender = shipper(api, threading.Event())
    sender.send([{"textPayload": "bad"}])
    sender.send([{"textPayload": "good"}])
    assert api.texts == ["good"]
    assert infos.messages[0].startswith("1 entries were refused, and are left out: HTTP 400")


def test_few_lines_are_in_memory_however_long_the_journal_is(
    journalctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journalctl.write_bytes(b"".join(map(journal_line, range(5000))))
    journal = logs.Journal(["journalctl"])
    time.sleep(1)
    assert journal._lines.qsize() == 500
    batches = [len(journal.batch()) for _ in range(10)]
    assert (batches, journal.ended) == ([500] * 10, False)
    journal.end()


def test_a_journal_that_ends_is_opened_again_by_systemd(
    api: Api, journalctl: Path, tmp_path: Path, infos: pytest.LogCaptureFixture
) -> None:
    journalctl.write_bytes(journal_line(1))
    program = tmp_path / "bin" / "journalctl"
    program.write_text(program.read_text().replace("time.sleep(60)", ""))
    stopping = threading.Event()
    with pytest.raises(LogsError, match="the journal ended"):
        logs.run(tmp_path / "cursor", stopping, shipper(api, stopping))
    assert api.texts == ["line 1"]


def test_the_destination_is_what_the_metadata_says(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = worker("b", "0" * 64, 2, 4, tpu_slice_name="train")
    monkeypatch.setattr(logs, "read", metadata.values.get)
    result = logs.destination()
    assert result["logName"] == "projects/lab/logs/tpu-host"
    assert result["resource"]["labels"] == {
        "project_id": "lab",
        "location": "us-east5-b",
        "namespace": "train",
        "node_id": "tpu-lab",
    }
    assert result["labels"] == {
        "node": "tpu-lab",
        "worker": "2",
        "zone": "us-east5-b",
        "slice": "train",
        "instance": "4711",
        "bucket": "b",
    }
    for key in ("agent-worker-number", "tpu-slice-name", "tpu-bucket"):
        metadata.set(key, None)
    assert "bucket" not in logs.destination()["labels"], "it counts in every environment"
    assert logs.destination()["labels"].items() >= {"worker": "unknown", "slice": "tpu-lab"}.items()
    metadata.set("tpu-slice", None)
    with pytest.raises(MetadataError, match="was it made by the tpu stack"):
        logs.destination()


def test_the_command_ends_when_it_is_told_to(journalctl: Path, tmp_path: Path) -> None:
    """As systemd tells it, with a journal that has nothing to send."""
    journalctl.write_bytes(b"")
    metadata = worker("b", "0" * 64)
    command = [sys.executable, "-m", "workload.host", "logs", "--cursor", str(tmp_path / "cursor")]
    with serving(metadata.answer) as address:
        environment = {"GCE_METADATA_HOST": address, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE) as running:
            until(lambda: (tmp_path / "asked").exists())
            running.send_signal(signal.SIGTERM)
            _, errors = running.communicate(timeout=HANG_S)
    assert (running.returncode, errors) == (0, b"")


def test_an_event_is_an_entry_that_programs_can_read() -> None:
    line = '2026-11-24T10:00:00.000000Z save {"step": 5, "reason": "of the test"}'
    entry = logs.entry(journal_line(1, line))[1]
    assert "textPayload" not in entry
    assert entry["jsonPayload"] == {"event": "save", "step": 5, "reason": "of the test", "message": line}


def test_events_of_each_minute_go_to_a_log_of_their_own(api: Api) -> None:
    line = '2026-11-24T10:00:00.000000Z heartbeat {"state": "running"}'
    shipper(api, threading.Event()).send(
        [logs.entry(journal_line(1, line))[1], logs.entry(journal_line(2, "step 1"))[1]]
    )
    (request,) = api.requests
    first, second = request["entries"]
    assert first["logName"] == request["logName"].replace("/tpu-host", "/tpu-vitals")
    assert "logName" not in second


@pytest.mark.parametrize(
    ("worker", "kind", "chips"), [("0", "v6e-16", 16), ("1", "v6e-16", None), ("0", None, None)]
)
def test_the_first_worker_says_how_many_chips_are_up(
    worker: str, kind: str | None, chips: int | None
) -> None:
    entry = logs.alive({"labels": {"worker": worker, "node": "n", "instance": "1"}}, kind)
    assert (entry and entry["jsonPayload"]["chips"]) == chips

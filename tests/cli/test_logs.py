"""`tpu logs` on the emulated Cloud Logging: which entries, in which order, each once."""

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import click
import pytest

from cli import logs
from infra.errors import InfraError
from tests.cli.call import call

BEGAN = datetime(2026, 11, 23, 12, tzinfo=UTC)


class Logging:
    """`entries.list` as https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/list says."""

    def __init__(self, *entries: dict[str, Any], page: int = 1000) -> None:
        self.entries, self.page = list(entries), page
        self.requests: list[dict[str, Any]] = []

    def json(self, method: str, url: str, query: object = None, body: Any = None) -> dict[str, Any]:
        assert (method, url) == ("POST", "https://logging.googleapis.com/v2/entries:list")
        self.requests.append(body)
        desired = dict(part.split("=", 1) for part in body["filter"].split(" AND ") if ">=" not in part)
        since = body["filter"].partition('timestamp>="')[2].rstrip('"')
        entries = [
            entry
            for entry in self.entries
            if entry["timestamp"] >= since
            and all(
                entry["labels"][key.removeprefix("labels.")] == value.strip('"')
                for key, value in desired.items()
                if key.startswith("labels.")
            )
        ]
        entries.sort(key=lambda item: str(item["timestamp"]), reverse=body["orderBy"].endswith("desc"))
        begin = int(body.get("pageToken", 0))
        size = min(self.page, body["pageSize"])
        more = {"nextPageToken": str(begin + size)} if begin + size < len(entries) else {}
        return {"entries": entries[begin : begin + size], **more}


def entry(number: int, worker: int = 0) -> dict[str, Any]:
    at = (BEGAN + timedelta(seconds=number)).isoformat().replace("+00:00", "Z")
    labels = {"node": "tpu-dev", "slice": "tpu-dev", "worker": str(worker), "unit": "tpu-job.service"}
    about = {"timestamp": at, "insertId": f"tpu-dev-{worker}-{number}"}
    return {**about, "textPayload": f"step {number}", "labels": labels}


def shown(cloud: Logging, *arguments: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with mock.patch.object(logs, "Client", return_value=cloud):
        assert call(logs.logs, ["dev", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_newest_lines_come_last_and_say_where_they_are_from(capsys: pytest.CaptureFixture[str]) -> None:
    cloud = Logging(*(entry(number, worker=number % 2) for number in range(10)), page=3)
    lines = shown(cloud, "--lines", "4", capsys=capsys)
    assert [line.split(" ", 2)[2] for line in lines] == [
        "tpu-dev-w0 step 6", "tpu-dev-w1 step 7", "tpu-dev-w0 step 8", "tpu-dev-w1 step 9",
    ]  # fmt: skip
    assert [body["pageSize"] for body in cloud.requests] == [4, 1]


def test_a_line_of_a_host_never_looks_like_anothers(capsys: pytest.CaptureFixture[str]) -> None:
    forged = {**entry(1), "textPayload": "x\n11-24 10:00:00 other-w0 all is done"}
    assert shown(Logging(forged), capsys=capsys)[1].startswith("    11-24")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["tpu-dev"], 'labels.slice="tpu-dev"'),
        (["tpu-us-east5-b-0"], 'labels.node="tpu-us-east5-b-0"'),
        (["--worker", "3"], 'labels.worker="3"'),
        (["--unit", "boot"], 'labels.unit="google-startup-scripts.service"'),
    ],
)
def test_a_node_a_slice_a_worker_or_a_unit_narrows_it_down(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud = Logging()
    assert shown(cloud, *arguments, capsys=capsys) == []
    assert cloud.requests[0]["filter"] == f'logName="projects/my-project/logs/tpu-host" AND {part}'


def test_an_age_is_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    cloud = Logging()
    shown(cloud, "--since", "2h", capsys=capsys)
    since = datetime.fromisoformat(cloud.requests[0]["filter"].partition('timestamp>="')[2][:-1])
    assert abs(datetime.now(UTC) - since - timedelta(hours=2)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "arguments",
    [["--since", "soon"], ["--since", "0m"], ["--lines", "0"], ["--lines", "-3"], ["--unit", "x"]],
)
def test_wrong_options_are_usage_errors(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError):
        call(logs.logs, ["dev", *arguments])


def test_a_name_that_would_leave_its_quotes_is_refused() -> None:
    with pytest.raises(InfraError, match="is no name of a node or slice"):
        call(logs.logs, ["dev", 'x" OR labels.node="y'])


def test_json_is_one_entry_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(Logging(entry(1), entry(2)), "--json", capsys=capsys)
    assert [json.loads(line)["insertId"] for line in lines] == ["tpu-dev-0-1", "tpu-dev-0-2"]


def test_following_shows_each_entry_once_late_ones_too() -> None:
    cloud = Logging(entry(1), entry(5))
    arrivals: Iterator[list[dict[str, Any]]] = iter([[], [entry(6), entry(3)], [], [entry(7)]])

    def arrive(_: float) -> None:
        cloud.entries += next(arrivals)

    entries = logs.Entries(cloud, "my-project", 'logName="x"', arrive)  # type: ignore[arg-type]
    newest = entries.newest(10)
    assert [item["textPayload"] for item in newest] == ["step 1", "step 5"]
    more = itertools.islice(entries.following(newest[-1]["timestamp"]), 3)
    assert [item["textPayload"] for item in more] == ["step 3", "step 6", "step 7"]


def test_an_entry_that_a_host_dates_ahead_hides_no_other() -> None:
    present_s = (datetime.now(UTC) - BEGAN).total_seconds()
    cloud = Logging(entry(int(present_s) + 86_000))
    arrivals = iter([[entry(int(present_s) + 1)]])
    entries = logs.Entries(cloud, "my-project", 'logName="x"', lambda _: cloud.entries.extend(next(arrivals)))  # type: ignore[arg-type]
    (ahead,) = entries.newest(10)
    assert next(entries.following(ahead["timestamp"]))["insertId"] == f"tpu-dev-0-{int(present_s) + 1}"

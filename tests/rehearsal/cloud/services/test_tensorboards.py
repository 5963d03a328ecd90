"""Vertex AI TensorBoard by its official client, and the workload's uploader, which writes there."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from google.auth.transport.requests import AuthorizedSession
from official import OWNER, Discovered, RefusedError
from requests.adapters import HTTPAdapter
from row import L
from services_front import Services
from tensorboardX import SummaryWriter

from workload.errors import BoardError, ConfigError, RunError
from workload.runs import vertex
from workload.runs.curves import Curves, main, records, upload
from workload.runs.store import FolderStore
from workload.runs.vertex import Board, Point, id_of

BOARDS = "aiplatform.projects.locations.tensorboards"
HOST = "us-east5-aiplatform"


def client(services: Services, below: str = "", who: str = OWNER) -> Discovered:
    return Discovered(f"{BOARDS}{below}", "v1", services, who, HOST)


@pytest.fixture(name="board")
def _board(services: Services) -> Iterator[str]:
    boards = client(services)
    name = boards.create(L, "", {"displayName": "curves"})
    yield name
    boards.delete(name)


@pytest.fixture(autouse=True)
def _doors(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lead the uploader's requests to the emulated cloud."""

    class Door(HTTPAdapter):
        def send(self, request: Any, *arguments: Any, **more: Any) -> requests.Response:
            host, _, path = request.url.removeprefix("https://").partition("/")
            request.url, request.headers["Host"] = f"http://127.0.0.1:{services.port}/{path}", host
            return super().send(request, *arguments, **more)

    monkeypatch.setattr(vertex, "HTTPAdapter", Door)
    monkeypatch.setattr("google.auth.default", lambda scopes: (services.credentials(OWNER), "p"))


def series(services: Services, run: str) -> dict[str, list[tuple[int, float]]]:
    """A run in Vertex: steps and values by curve."""
    curves = client(services, ".experiments.runs.timeSeries")
    mapping = {}
    for name in (item for page in curves.pages(run, 100) for item in page):
        data = curves._run(curves._resource.read(tensorboardTimeSeries=name, maxDataPoints=-1))
        values = data["timeSeriesData"].get("values", [])
        mapping[curves.get(name)["displayName"]] = [
            (int(item.get("step", 0)), float(item["scalar"]["value"])) for item in values
        ]
    return mapping


def written(folder: Path, points: dict[str, list[tuple[int, float]]], purge: int = 0) -> None:
    """The event file of one start, by the trainer's writer."""
    with SummaryWriter(str(folder / "tensorboard"), purge_step=purge, filename_suffix=f"-{purge}") as writer:
        for tag, values in points.items():
            for step, value in values:
                writer.add_scalar(tag, value, step)


def cut(folder: Path, left: int) -> bytes:
    """The one event file there is, without its last records, as it was before; all of it is returned."""
    (file,) = (folder / "tensorboard").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: [end for end, _ in records(whole)][-1 - left]])
    return whole


def test_a_time_series_lives_as_at_google(services: Services, board: str) -> None:
    experiments, runs, curves = (
        client(services, below)
        for below in (".experiments", ".experiments.runs", ".experiments.runs.timeSeries")
    )

    def make(of: Discovered, parent: str, parameter: str, id_: str, body: Any) -> str:
        made = of._run(of._resource.create(parent=parent, body=body, **{parameter: id_}))
        return str(made["name"])

    experiment = make(experiments, board, "tensorboardExperimentId", "e", {"displayName": "e"})
    run = make(runs, experiment, "tensorboardRunId", "r", {"displayName": "r"})
    assert run == f"{board}/experiments/e/runs/r"
    with pytest.raises(RefusedError, match="displayName r is another's"):
        make(runs, experiment, "tensorboardRunId", "other", {"displayName": "r"})
    body = {"displayName": "loss", "valueType": "SCALAR"}
    curve = make(curves, run, "tensorboardTimeSeriesId", "loss", body)
    with pytest.raises(RefusedError) as caught:
        make(curves, run, "tensorboardTimeSeriesId", "loss", {**body, "displayName": "again"})
    assert caught.value.code == 409
    with pytest.raises(RefusedError, match="not emulated"):
        make(curves, run, "tensorboardTimeSeriesId", "t", {"displayName": "t", "valueType": "TENSOR"})

    def write(id_: str, *values: tuple[int, float]) -> None:
        data = {
            "tensorboardTimeSeriesId": id_,
            "valueType": "SCALAR",
            "values": [
                {"step": str(step), "wallTime": "2026-01-01T00:00:00Z", "scalar": {"value": value}}
                for step, value in values
            ],
        }
        body = {"tensorboardRun": run, "timeSeriesData": [data]}
        runs._run(runs._resource.write(tensorboardRun=run, body=body))

    write("loss", (1, 4.0), (2, 3.0))
    write("loss", (2, 2.5), (3, 2.0))
    assert series(services, run) == {"loss": [(1, 4.0), (2, 2.5), (3, 2.0)]}
    assert curves.get(curve)["metadata"] == {"maxStep": "3", "maxWallTime": "2026-01-01T00:00:00Z"}
    for id_, values, code in (("none", [(1, 1.0)], 404), ("loss", [(1, 1.0)] * 5001, 400)):
        with pytest.raises(RefusedError) as caught:
            write(id_, *values)
        assert caught.value.code == code
    stranger = client(services, ".experiments.runs", "stranger@example.com")
    with pytest.raises(RefusedError, match=r"aiplatform\.tensorboardRuns\.get"):
        stranger.get(run)


def test_the_uploader_brings_every_point_once_and_the_newest_of_a_step(
    services: Services, board: str, tmp_path: Path
) -> None:
    curves, to = Curves(FolderStore(tmp_path)), Board(board, "vision", "Run_1")
    written(tmp_path, {"tokens_per_s": [(1, 10.0)], "loss": [(1, 4.0), (2, 3.0), (3, 2.75)]})
    whole = cut(tmp_path, 1)
    assert upload(curves, to) == 3
    next((tmp_path / "tensorboard").iterdir()).write_bytes(whole)
    assert upload(curves, to) == 1
    assert upload(curves, to) == 0
    written(tmp_path, {"loss": [(3, 2.5), (4, float("nan"))]}, purge=3)  # a later start
    assert upload(curves, to) == 2
    result = series(services, to.name)
    assert result["loss"][:3] == [(1, 4.0), (2, 3.0), (3, 2.5)]
    assert result["tokens_per_s"] == [(1, 10.0)]
    step, value = result["loss"][3]
    assert step == 4
    assert value != value

    again = Board(board, "vision", "Run_1")  # an uploader that was restarted
    assert upload(Curves(FolderStore(tmp_path)), again) == 5
    assert again.name == to.name
    assert series(services, to.name)["loss"][:3] == result["loss"][:3]


def test_a_long_run_takes_as_few_requests_as_the_limit_allows(
    services: Services, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 2600
    written(tmp_path, {tag: [(step, 1.0) for step in range(steps)] for tag in ("a", "b")})
    to = Board(board, "e", "long")
    posted: list[str] = []
    post = AuthorizedSession.post
    monkeypatch.setattr(
        AuthorizedSession, "post", lambda self, url, **more: posted.append(url) or post(self, url, **more)
    )
    assert upload(Curves(FolderStore(tmp_path)), to) == 2 * steps
    assert sum(url.endswith(":write") for url in posted) == 2
    assert {tag: len(points) for tag, points in series(services, to.name).items()} == {"a": steps, "b": steps}


def test_a_file_that_is_still_written_is_read_up_to_its_last_whole_record(tmp_path: Path) -> None:
    written(tmp_path, {"loss": [(1, 1.0), (2, 2.0)]})
    (file,) = (tmp_path / "tensorboard").iterdir()
    whole = file.read_bytes()
    ends = [end for end, _ in records(whole)]
    assert ends[-1] == len(whole)
    for size in range(len(whole)):
        assert [end for end, _ in records(whole[:size])] == [end for end in ends if end <= size]


def test_what_is_refused_is_reported_with_what_to_do(
    services: Services, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        BoardError, match=r"tensorboards/9/experiments: 404: .*\n    fix: name an existing TensorBoard"
    ):
        Board(f"{L}/tensorboards/9", "e", "r")
    stranger = services.credentials("stranger@example.com")
    monkeypatch.setattr("google.auth.default", lambda scopes: (stranger, "p"))
    with pytest.raises(BoardError, match=r"(?s)403: .*fix: grant roles/aiplatform.user on the project"):
        Board(board, "e", "r")
    with pytest.raises(ConfigError) as caught:
        main(["runs/tiny", "--to", "tensorboards/1", "--experiment", "My Team", "--every-s", "0"])
    assert [problem.path for problem in caught.value.problems] == ["--to", "--experiment", "--every-s"]


@pytest.mark.parametrize(
    "run", ["http://b/runs/tiny", "gs:/b/runs/tiny", "gs://", "gs://b", "gs://b/", "/", ""]
)
def test_a_url_that_is_no_runs_is_refused(run: str) -> None:
    with pytest.raises(ConfigError) as caught:
        main([run, "--to", f"{L}/tensorboards/1", "--every-s", "inf"])
    assert [problem.path for problem in caught.value.problems] == ["RUN_URL", "--every-s"]


@pytest.mark.parametrize("folder", ["none", "tiny/tensorboard"])
def test_nothing_is_made_at_vertex_for_a_folder_without_curves(
    services: Services, board: str, tmp_path: Path, folder: str
) -> None:
    written(tmp_path / "tiny", {"loss": [(1, 1.0)]})
    with pytest.raises(RunError, match=rf"{folder}/tensorboard/: no event files\n    fix: name the folder"):
        main([str(tmp_path / folder), "--to", board, "--once"])
    assert [*client(services, ".experiments").pages(board, 100)] == [[]]
    assert main([f"{tmp_path / 'tiny'}/", "--to", board, "--once"]) == 0
    assert series(services, f"{board}/experiments/tiny/runs/tiny") == {"loss": [(1, 1.0)]}


def test_points_come_in_the_order_of_starts_whatever_the_order_of_files(tmp_path: Path) -> None:
    class Backwards(FolderStore):
        def sizes(self, prefix: str) -> dict[str, int]:
            return dict(sorted(super().sizes(prefix).items(), reverse=True))

    for start, value in enumerate((1.0, 2.0)):
        written(tmp_path, {"loss": [(3, value)]}, purge=start)
    assert [point.value for _, point in Curves(Backwards(tmp_path)).new()] == [1.0, 2.0]


def test_an_upload_that_is_refused_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: str) -> Board:
        raise BoardError("403: no")

    monkeypatch.setattr("workload.runs.curves.Board", refused)
    written(tmp_path / "tiny", {"loss": [(1, 1.0)]})
    with pytest.raises(BoardError, match="403: no"):
        main([str(tmp_path / "tiny"), "--to", f"{L}/tensorboards/1", "--once"])


def test_what_is_no_event_file_is_passed_over_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    written(tmp_path, {"loss": [(1, 1.0)]})
    (file,) = (tmp_path / "tensorboard").iterdir()
    damaged = file.read_bytes()[:12] + b"\xff" * 200
    (tmp_path / "tensorboard" / "notes.txt").write_bytes(damaged)
    with SummaryWriter(str(tmp_path / "tensorboard"), filename_suffix="-text") as writer:
        writer.add_text("notes", "no number")
    assert [curve for curve, _ in Curves(FolderStore(tmp_path)).new()] == ["loss"]
    file.write_bytes(damaged)
    with pytest.raises(RunError, match=r"tfevents.*: damaged at byte \d+: .*\n    fix: delete it"):
        list(Curves(FolderStore(tmp_path)).new())


@pytest.mark.parametrize("title", ["loss", "my--team", "0-", "x" * 128])
def test_an_id_of_vertex_stays_as_it_is(title: str) -> None:
    assert id_of(title) == title


@pytest.mark.parametrize(("value", "written_as"), [
    (0.0, 0.0), (float("inf"), "Infinity"), (float("-inf"), "-Infinity"), (float("nan"), "NaN"),
])  # fmt: skip
def test_what_json_has_no_number_for_is_written_as_protocol_buffers_do(
    value: float, written_as: float | str
) -> None:
    result = vertex._value(Point(7, value, 1_767_225_600.5))
    assert result == {
        "step": "7", "wallTime": "2026-01-01T00:00:00.500000Z", "scalar": {"value": written_as},
    }  # fmt: skip


@pytest.mark.parametrize("title", ["loss", "eval_loss", "Loss", "a/b", "ü", "x" * 300, "-"])
def test_ids_are_ones_that_vertex_takes_and_differ_where_titles_do(title: str) -> None:
    import re

    assert re.fullmatch("[a-z0-9][a-z0-9-]{0,127}", id_of(title))
    assert len({id_of(title), id_of(f"{title}_"), id_of(f"{title}-")}) == 3


PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from workload.errors import BoardError
from workload.runs import curves

tries = Path(sys.argv[1]) / "tries"

class Board:
    name = "board"
    def __init__(self, *names):
        self.count = count = int(tries.read_text()) + 1 if tries.exists() else 1
        tries.write_text(str(count))
        if count <= 2:
            raise BoardError("503: later")
        print(*names, flush=True)
    def write(self, batch):
        if self.count == 3:  # what was read by then isn't written
            raise BoardError("503: later")
        self.show(batch)
    def show(self, batch): print({curve: sorted(points) for curve, points in batch.items()}, flush=True)

curves.Board = Board
sys.exit(curves.main(sys.argv[1:]))
"""
FIRST = [
    "curves: 503: later", *[f"{L}/tensorboards/1 tiny tiny", "curves: uploading to board"] * 2,
    "{'loss': [1]}", "curves: 1 points uploaded",
]  # fmt: skip
LAST = ["{'loss': [2]}", "curves: 1 points uploaded"]


@pytest.mark.parametrize("ended_by", ["SIGTERM", "SIGINT", "parent"])
def test_what_came_before_the_end_is_uploaded_and_trouble_on_the_way_costs_nothing(
    ended_by: str, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    written(folder, {"loss": [(1, 1.0), (2, 0.5)]})
    whole = cut(folder, 1)
    line = [sys.executable, "-c", PROGRAM, str(folder), "--to", f"{L}/tensorboards/1", "--every-s", "0.2"]
    first = FIRST
    if ended_by == "SIGINT":
        line += ["--experiment", "vision"]
        first = [item.replace("tiny tiny", "vision tiny") for item in FIRST]
    begin = f"exec {shlex.join(line)}"
    if ended_by == "parent":
        begin = f"{shlex.join([*line, '--with-parent'])} & echo $!; read -r _; kill -9 $$"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["bash", "-c", begin], text=True, env=environment, **pipes) as parent:  # type: ignore[call-overload]
        assert parent.stdin
        assert parent.stdout
        if ended_by == "parent":
            assert parent.stdout.readline().strip().isdecimal()
        assert [parent.stdout.readline().strip() for _ in first] == first
        next((folder / "tensorboard").iterdir()).write_bytes(whole)
        if ended_by == "parent":
            parent.stdin.write("\n")
            parent.stdin.flush()
        else:
            parent.send_signal(getattr(signal, ended_by))
        assert parent.stdout.read().splitlines() == LAST


@pytest.mark.parametrize("options", [(), ("--once",)])
def test_ctrl_c_ends_an_uploader_that_waits_for_vertex(tmp_path: Path, options: tuple[str, ...]) -> None:
    written(tmp_path / "tiny", {"loss": [(1, 1.0)]})
    (tmp_path / "tiny" / "tries").write_text("3")  # Vertex answers
    slow = "def show(self, batch): time.sleep(60); print"
    waiting = PROGRAM.replace("def show(self, batch): print", slow).replace("import os,", "import os, time,")
    line = [sys.executable, "-c", waiting, str(tmp_path / "tiny"), "--to", f"{L}/tensorboards/1", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as uploader:
        assert uploader.stdout
        for _ in range(2):
            uploader.stdout.readline()
        begun = time.monotonic()
        while uploader.poll() is None and time.monotonic() < begun + 30:
            uploader.send_signal(signal.SIGINT)  # the second one, of an uploader that finishes first
            time.sleep(0.5)
        assert b"KeyboardInterrupt" in uploader.communicate()[1]

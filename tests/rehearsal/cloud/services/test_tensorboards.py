"""Vertex AI TensorBoard by its official client, and the workload's uploader, which writes there."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests
from google.auth.transport.requests import AuthorizedSession
from official import OWNER, Discovered, RefusedError
from requests.adapters import HTTPAdapter
from row import L
from services_front import Services

from workload.errors import BoardError, ConfigError, RunError
from workload.runs import vertex
from workload.runs.curves import main, upload
from workload.runs.metrics import Metrics, Point, begin_line, line
from workload.runs.store import FolderStore
from workload.runs.vertex import Board, id_of

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


def written(folder: Path, points: dict[str, list[tuple[int, float]]], begin: int = 0) -> None:
    """The rows of one start, by the trainer's format."""
    time = f"2026-01-01T00:00:{begin:02}Z"
    rows = [line(step, time, {curve: value}) for curve, values in points.items() for step, value in values]
    FolderStore(folder).write(
        f"progress/{begin:04}-1.jsonl", "".join([begin_line(begin, time), *rows]).encode()
    )


def cut(folder: Path, left: int) -> bytes:
    """The one object there is, without its last rows, as it was while it was live; all of it is returned."""
    (file,) = (folder / "progress").iterdir()
    whole = file.read_bytes()
    live = file.with_name("live.jsonl")
    file.rename(live)
    live.write_bytes(b"".join(whole.splitlines(keepends=True)[:-left]))
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


def test_the_uploader_brings_every_point_once_and_the_newest_of_a_step(
    services: Services, board: str, tmp_path: Path
) -> None:
    curves, to = Metrics(FolderStore(tmp_path)), Board(board, "vision", "Run_1")
    written(tmp_path, {"tokens_per_s": [(1, 10.0)], "loss": [(1, 4.0), (2, 3.0), (3, 2.75)]})
    whole = cut(tmp_path, 1)
    assert upload(curves, to) == 3
    (tmp_path / "progress" / "0000-1.jsonl").write_bytes(whole)
    assert upload(curves, to) == 1
    assert upload(curves, to) == 0
    later = [(3, 2.5), (4, 2.0)]
    written(tmp_path, {"loss": later}, begin=2)  # a later start
    assert upload(curves, to) == 2
    result = series(services, to.name)
    assert result["loss"] == [(1, 4.0), (2, 3.0), *later]
    assert result["tokens_per_s"] == [(1, 10.0)]

    again = Board(board, "vision", "Run_1")  # an uploader that was restarted
    assert upload(Metrics(FolderStore(tmp_path)), again) == 5
    assert again.name == to.name
    assert series(services, to.name)["loss"] == result["loss"]


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
    assert upload(Metrics(FolderStore(tmp_path)), to) == 2 * steps
    assert sum(url.endswith(":write") for url in posted) == 2
    assert {tag: len(points) for tag, points in series(services, to.name).items()} == {"a": steps, "b": steps}


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


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ([], "--to, --wandb"),
        (["--to", f"{L}/tensorboards/1", "--wandb", "p"], "--to, --wandb"),
        (["--offline", "f"], "--offline"),
        (["--offline", "f", "--to", f"{L}/tensorboards/1"], "--offline"),
    ],
)
def test_a_view_is_named_once(line: list[str], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        main(["runs/tiny", *line])
    assert [problem.path for problem in caught.value.problems] == [option]


@pytest.mark.parametrize("folder", ["none", "tiny/progress"])
def test_nothing_is_made_at_vertex_for_a_folder_without_curves(
    services: Services, board: str, tmp_path: Path, folder: str
) -> None:
    written(tmp_path / "tiny", {"loss": [(1, 1.0)]})
    with pytest.raises(RunError, match=rf"{folder}/progress/: no metrics\n    fix: name the folder"):
        main([str(tmp_path / folder), "--to", board, "--once"])
    assert [*client(services, ".experiments").pages(board, 100)] == [[]]
    assert main([f"{tmp_path / 'tiny'}/", "--to", board, "--once"]) == 0
    assert series(services, f"{board}/experiments/tiny/runs/tiny") == {"loss": [(1, 1.0)]}


def test_an_upload_that_is_refused_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: str) -> Board:
        raise BoardError("403: no")

    monkeypatch.setattr("workload.runs.curves.Board", refused)
    written(tmp_path / "tiny", {"loss": [(1, 1.0)]})
    with pytest.raises(BoardError, match="403: no"):
        main([str(tmp_path / "tiny"), "--to", f"{L}/tensorboards/1", "--once"])


@pytest.mark.parametrize("title", ["loss", "eval_loss", "Loss", "a/b", "ü", "x" * 300, "-"])
def test_ids_are_ones_that_vertex_takes_and_differ_where_titles_do(title: str) -> None:
    assert re.fullmatch("[a-z0-9][a-z0-9-]{0,127}", id_of(title))
    assert len({id_of(title), id_of(f"{title}_"), id_of(f"{title}-")}) == 3
    assert [id_of(id_) for id_ in ("loss", "my--team", "0-", "x" * 128)] == [
        "loss",
        "my--team",
        "0-",
        "x" * 128,
    ]


class Flaky:
    """A board that fails twice when it is opened, and once when it is written to."""

    name = "board"
    attempts = 0
    written: list[dict[str, list[int]]]

    def __init__(self, *names: str) -> None:
        type(self).attempts += 1
        if self.attempts <= 2:
            raise BoardError("503: later")
        print(*names)

    def write(self, batch: dict[str, dict[int, Point]]) -> None:
        if self.attempts == 3:
            raise BoardError("503: later")
        self.written.append({curve: sorted(points) for curve, points in batch.items()})
        if len(self.written) == 1:
            self.after_the_first_points()

    @staticmethod
    def after_the_first_points() -> None: ...


@pytest.fixture(name="flaky")
def _flaky(monkeypatch: pytest.MonkeyPatch) -> type[Flaky]:
    """The uploader's board; SIGINT has Python's handler before."""

    class Board(Flaky):
        written: ClassVar[list[dict[str, list[int]]]] = []

    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr("workload.runs.curves.Board", Board)
    return Board


@pytest.mark.parametrize("ended_by", ["SIGTERM", "SIGINT", "parent"])
def test_what_came_before_the_end_is_uploaded_and_trouble_on_the_way_costs_nothing(
    ended_by: str,
    flaky: type[Flaky],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, experiment = tmp_path / "tiny", "vision" if ended_by == "SIGINT" else "tiny"
    written(folder, {"loss": [(1, 1.0), (2, 0.5)]})
    whole = cut(folder, 1)
    line = [str(folder), "--to", f"{L}/tensorboards/1", "--every-s", "0.01", "--experiment", experiment]

    pipe, parent = os.pipe()
    alarms: list[int] = []
    monkeypatch.setattr(signal, "alarm", alarms.append)
    monkeypatch.setattr("sys.stdin", os.fdopen(pipe))

    def end() -> None:
        (folder / "progress" / "0000-1.jsonl").write_bytes(whole)
        if ended_by == "parent":
            os.close(parent)
        else:
            signal.raise_signal(getattr(signal, ended_by))

    monkeypatch.setattr(flaky, "after_the_first_points", staticmethod(end))
    assert main([*line, "--with-parent"] if ended_by == "parent" else line) == 0
    assert alarms == ([600] if ended_by == "parent" else [])
    assert flaky.written == [{"loss": [1]}, {"loss": [2]}]
    opened = [f"{L}/tensorboards/1 {experiment} tiny", "curves: uploading to board"]
    uploaded = ["curves: 1 points uploaded"] * 2
    assert capsys.readouterr().out.splitlines() == ["curves: 503: later", *opened, *opened, *uploaded]


@pytest.mark.parametrize("options", [(), ("--once",)])
def test_ctrl_c_ends_an_uploader_that_waits_for_vertex(
    tmp_path: Path, options: tuple[str, ...], flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "tiny", {"loss": [(1, 1.0)]})
    monkeypatch.setattr(flaky, "attempts", 3)

    def wait() -> None:
        if not options:
            signal.raise_signal(signal.SIGINT)  # an uploader that finishes first
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(flaky, "after_the_first_points", staticmethod(wait))
    with pytest.raises(KeyboardInterrupt):
        main([str(tmp_path / "tiny"), "--to", f"{L}/tensorboards/1", *options])

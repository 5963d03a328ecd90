"""W&B as a view of a run's metrics, by a stand-in for its package; in `make prove` by the package itself."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.limits import HANG_S, until
from tests.workload import wandb_server
from tests.workload.slice import RunFolder, command, train
from workload.__main__ import main as workload
from workload.errors import BoardError, ConfigError
from workload.runs import curves, wandb_run
from workload.runs.curves import main
from workload.runs.metrics import begin_line, line
from workload.runs.store import FolderStore, open_store
from workload.runs.vertex_ids import id_of
from workload.runs.wandb_run import WandbRun, file_of
from workload.train import launch
from workload.train.config import ObserveConfig
from workload.train.preemption import Preemption
from workload.train.uploader import Uploader

ROOT = Path(__file__).parents[2]
KEY = "0" * 40
STANDINS = Path(__file__).with_name("standins")
TIME = "2026-01-01T00:00:{:02}+00:00"
Numbers = dict[str, float]


@pytest.fixture(autouse=True)
def _no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_FAULT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(name="server")
def _server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in's W&B, for this process and its children."""
    folder = tmp_path / "server"
    folder.mkdir()
    monkeypatch.setenv("WANDB_SERVER", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(STANDINS))
    monkeypatch.syspath_prepend(str(STANDINS))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    return folder


class StandIn:
    """The runs that the stand-in's W&B has, and the rows that `wandb sync` brings there from a file."""

    def __init__(self, server: Path):
        self._server = server

    def sent(self, url: str) -> list[tuple[int, Numbers]]:
        return sent(self._server, url)

    def synced(self, file: Path) -> list[tuple[int, Numbers]]:
        assert [path.name for path in self._server.iterdir()] == ["calls.jsonl"]
        return rows(file.read_bytes())


class Package:
    """The same by the package itself, whose requests a server on loopback answers."""

    def __init__(self, server: wandb_server.Server, program: Path):
        self._server, self._program = server, program

    def sent(self, url: str) -> list[tuple[int, Numbers]]:
        ((run, lines),) = self._server.histories.items()
        assert run == ("team", "vision", id_of(url))
        return rows("\n".join(lines).encode())

    def synced(self, file: Path) -> list[tuple[int, Numbers]]:
        assert not self._server.histories
        environment = {**os.environ, "WANDB_API_KEY": KEY}
        line, cwd = [self._program, "sync", file.parent], file.parent.parent  # it leaves logs there
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=HANG_S, cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        assert self._server.histories, done.stdout + done.stderr
        return self.sent(str(file.parents[2]))


@pytest.fixture(name="wandb", params=["stand-in", pytest.param("package", marks=pytest.mark.prove)])
def _wandb(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn | Package]:
    if request.param == "stand-in":
        yield StandIn(request.getfixturevalue("server"))
        return
    made = subprocess.run(
        ["tools/setup.sh", "wandb"], capture_output=True, text=True, cwd=ROOT, timeout=HANG_S, check=True
    )
    python = Path(made.stdout.splitlines()[-1])
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    # Behind the workload's own, whose versions count, as on hosts.
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.path.append({str(packages)!r})\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    with wandb_server.serve() as server:
        for name, value in {
            "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "WANDB_ERROR_REPORTING": "false",
            "WANDB_BASE_URL": f"http://{server.address}",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        yield Package(server, python.with_name("wandb"))


@pytest.fixture(name="key")
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)


def calls(server: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (server / "calls.jsonl").read_text().splitlines()]


def rows(content: bytes) -> list[tuple[int, Numbers]]:
    """Steps and numbers in the order in which W&B got them."""
    parsed = [json.loads(text) for text in content.splitlines()]
    return [(row["_step"], {name: row[name] for name in row if not name.startswith("_")}) for row in parsed]


def sent(server: Path, run: Path | str, project: str = "team.vision") -> list[tuple[int, Numbers]]:
    return rows((server / f"{project}.{id_of(str(run))}.jsonl").read_bytes())


def written(folder: Path, begin: int, *numbers: tuple[int, Numbers], state: str = "") -> None:
    """The rows of one start after step `begin`, by the trainer's format; then the run's state."""
    store, texts = FolderStore(folder), [line(step, TIME.format(step), row) for step, row in numbers]
    number = len(store.list("progress/"))
    text = "".join([begin_line(begin, TIME.format(begin)), *texts])
    store.write(f"progress/{number:04}-{numbers[-1][0]}.jsonl", text.encode())
    if state:
        store.write("status.json", json.dumps({"state": state}).encode())


@pytest.mark.usefixtures("key")
def test_a_run_that_is_continued_stays_one_and_has_each_step_once(server: Path, tmp_path: Path) -> None:
    run = tmp_path / "Run_1"
    online = [str(run), "--wandb", "team/vision", "--once"]
    written(run, 0, (1, {"loss": 4.0}), (2, {"loss": 3.0}), (3, {"loss": 2.5}), state="running")
    assert main(online) == 0
    assert sent(server, run) == [(1, {"loss": 4.0}), (2, {"loss": 3.0})]
    # Two steps are done again, by a start with other rounding, and the last is evaluated.
    again = [(2, {"loss": 3.5}), (3, {"loss": 2.0}), (4, {"eval_loss": 1.5}), (4, {"loss": 1.0})]
    written(run, 1, *again, state="done")
    for _ in range(2):
        assert main(online) == 0
    last = [(3, {"loss": 2.0}), (4, {"eval_loss": 1.5, "loss": 1.0})]
    assert sent(server, run) == [(1, {"loss": 4.0}), (2, {"loss": 3.0}), *last]
    (known,) = {tuple(call[key] for key in ("entity", "project", "id", "resume")) for call in calls(server)}
    assert known == ("team", "vision", id_of(str(run)), "allow")
    expected = {"x_disable_meta": True, "x_save_requirements": False}
    assert expected.items() <= calls(server)[0]["settings"].items()


@pytest.mark.usefixtures("key")
def test_an_evaluation_that_a_notice_cut_short_reaches_the_step_that_it_is_of(
    server: Path, tmp_path: Path
) -> None:
    online = [str(run := tmp_path / "tiny"), "--wandb", "vision", "--once"]
    written(run, 0, (1, {"loss": 4.0}), (2, {"loss": 3.0}), state="preempted")
    assert main(online) == 0
    written(run, 2, (2, {"eval_loss": 3.5}), (3, {"loss": 2.0}), state="done")
    assert main(online) == 0
    whole = [(1, {"loss": 4.0}), (2, {"loss": 3.0, "eval_loss": 3.5}), (3, {"loss": 2.0})]
    assert sent(server, run, "None.vision") == whole


@pytest.mark.usefixtures("key")
def test_the_time_of_a_step_is_that_of_the_run(server: Path, tmp_path: Path) -> None:
    written(tmp_path / "tiny", 0, (1, {"loss": 4.0}))
    assert main([str(tmp_path / "tiny"), "--wandb", "team/vision", "--once"]) == 0
    assert json.loads(next(server.glob("team.*")).read_text())["_timestamp"] == 1767225601.0


@pytest.mark.parametrize("scheme", ["folder", "bucket"])
def test_the_file_is_the_whole_run_by_its_last_starts_and_replaces_the_one_before(
    server: Path, tmp_path: Path, scheme: str, storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    run, folder = tmp_path / "tiny", {"folder": str(tmp_path / "w"), "bucket": "gs://bucket/w"}[scheme]
    offline = [str(run), "--wandb", "team/vision", "--once", "--offline", folder]
    monkeypatch.setattr(curves, "MOST_POINTS", 2)  # so that steps and those done again come apart
    first = [(1, {"loss": 4.0}), (2, {"loss": 3.0}), (3, {"loss": 2.0}), (4, {"loss": 1.0})]
    written(run, 0, *first, state="preempted")
    assert main(offline) == 0
    store = open_store(folder)
    assert rows(store.read(file_of(str(run)))) == first
    again = [(2, {"loss": 3.5}), (3, {"loss": 2.5}), (4, {"loss": 1.5}), (5, {"loss": 1.0})]
    written(run, 1, *again, state="preempted")
    assert main(offline) == 0
    assert store.list("") == [file_of(str(run))]
    assert rows(store.read(file_of(str(run)))) == [first[0], *again]
    assert [(call["mode"], call["resume"]) for call in calls(server)] == [("offline", None)] * 2


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "init",
            r"team/vision: init: the .*where W&B can be reached: workload upload-curves \S+ --wandb team",
        ),
        ("log", "team/vision, tiny: can't be written to: BrokenPipeError"),
        ("finish", "team/vision, tiny: can't be ended: BrokenPipeError"),
    ],
)
def test_what_wandb_doesnt_take_is_one_message(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    monkeypatch.setenv("WANDB_FAULT", fault)
    written(tmp_path / "tiny", 0, (1, {"loss": 4.0}))
    with pytest.raises(BoardError, match=f"(?s)W&B {message}"):
        main([str(tmp_path / "tiny"), "--wandb", "team/vision", "--once"])


def test_without_a_login_the_next_command_is_named(server: Path, tmp_path: Path) -> None:
    written(tmp_path / "tiny", 0, (1, {"loss": 4.0}))
    with pytest.raises(
        BoardError, match=r"api_key not configured.*\n    fix: `wandb login`, or \$WANDB_API_KEY"
    ):
        main([str(tmp_path / "tiny"), "--wandb", "team/vision", "--once"])


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("fault", ["init", "log"])
def test_an_outage_is_reported_once_and_costs_no_step(
    fault: str,
    server: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WANDB_FAULT", fault)
    begin, attempts = WandbRun.__init__, 0

    def begun(*arguments: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 3:
            monkeypatch.delenv("WANDB_FAULT")
            signal.raise_signal(signal.SIGTERM)
        begin(*arguments)

    monkeypatch.setattr(WandbRun, "__init__", begun)
    before = signal.getsignal(signal.SIGINT)
    written(tmp_path / "tiny", 0, (1, {"loss": 4.0}), (2, {"loss": 3.0}))
    assert main([str(tmp_path / "tiny"), "--wandb", "team/vision", "--every-s", "0.01"]) == 0
    signal.signal(signal.SIGINT, before)
    assert [step for step, _ in sent(server, tmp_path / "tiny")] == [1, 2]
    assert capsys.readouterr().out.count(f"{fault}: the service has ended") == 1


@pytest.mark.parametrize("fault", ["log", "finish"])
@pytest.mark.usefixtures("key")
def test_a_service_that_ends_with_its_trainer_costs_no_step(
    fault: str, server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, write, begin = tmp_path / "tiny", WandbRun.write, WandbRun.__init__

    def wrote(*arguments: Any) -> None:
        write(*arguments)
        monkeypatch.setattr(WandbRun, "write", write)
        monkeypatch.setattr(WandbRun, "__init__", begun)
        monkeypatch.setenv("WANDB_FAULT", fault)
        written(run, 2, (3, {"loss": 2.0}))
        signal.raise_signal(signal.SIGTERM)

    def begun(*arguments: Any) -> None:
        monkeypatch.delenv("WANDB_FAULT")
        begin(*arguments)

    monkeypatch.setattr(WandbRun, "write", wrote)
    before = signal.getsignal(signal.SIGINT)
    written(run, 0, *(steps := [(1, {"loss": 4.0}), (2, {"loss": 3.0})]))
    assert main([str(run), "--wandb", "team/vision", "--every-s", "0.01"]) == 0
    signal.signal(signal.SIGINT, before)
    assert "WANDB_FAULT" not in os.environ, "the service didn't end"
    assert sent(server, run) == [*steps, (3, {"loss": 2.0})]


@pytest.mark.usefixtures("key", "server")
def test_runs_of_one_name_in_two_buckets_are_two(server: Path) -> None:
    for bucket in ("a", "b"):
        WandbRun("vision", f"gs://{bucket}/runs/tiny")
    assert {call["name"] for call in calls(server)} == {"tiny"}
    assert len({call["id"] for call in calls(server)}) == 2


@pytest.mark.parametrize("folder", [False, True])
def test_a_package_that_is_not_there_is_named_before_anything_is_done(
    folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if folder:  # as W&B leaves one where a program ran
        (tmp_path / "cwd" / "wandb").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(tmp_path / "cwd"))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    assert not wandb_run.installed()
    written(tmp_path / "tiny", 0, (1, {"loss": 4.0}))
    with pytest.raises(BoardError, match="pip install wandb"):
        main([str(tmp_path / "tiny"), "--wandb", "vision", "--once"])
    started = [*command("tuned", 4, 2, "observe.wandb=team/vision"), "--dir", str(tmp_path / "runs")]
    assert workload(started) == 2
    refusal = capsys.readouterr().err
    assert 'observe.wandb = "team/vision": needs the package wandb' in refusal
    assert "requirements.txt" in refusal
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("project", ["a/b/c", "team/", "/vision", "team/vi sion", "https://wandb.ai/a"])
def test_a_project_that_wandb_cant_have_is_refused(project: str, tmp_path: Path) -> None:
    from workload.train import config

    with pytest.raises(ConfigError, match="ENTITY/PROJECT") as caught:
        config.load("tiny.toml", [f"observe.wandb={project}"])
    assert [problem.path for problem in caught.value.problems] == ["observe.wandb"]
    with pytest.raises(ConfigError, match="ENTITY/PROJECT"):
        main([str(tmp_path), "--wandb", project, "--once"])


@pytest.mark.parametrize("offline", ["s3://bucket/w", "gs:/bucket/w"])
def test_a_files_place_that_cant_be_written_is_refused(offline: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        main([str(tmp_path), "--wandb", "vision", "--once", "--offline", offline])
    assert [problem.path for problem in caught.value.problems] == ["--offline"]


_TRAINER = """import signal, sys
from workload.train.config import ObserveConfig
from workload.train.uploader import Uploader
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)
with Uploader(sys.argv[1], ObserveConfig(wandb="team/vision"), float(sys.argv[2]), {}):
    print("begun", flush=True)
    sys.stdin.readline()
"""


def trainer(run: Path) -> subprocess.Popen[str]:
    """A trainer that ends at a line of input, and not by signals; its view has begun."""
    line = [sys.executable, "-c", _TRAINER, str(run), str(HANG_S)]
    started = subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], str(ROOT)))},
    )  # fmt: skip
    assert started.stdout
    while started.stdout.readline() != "begun\n":
        pass
    return started


def descendants(process: int) -> Iterator[int]:
    """Yield a process and its children, and theirs."""
    yield process
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        yield from descendants(int(child))


@pytest.mark.usefixtures("server")
def test_a_view_whose_trainer_is_killed_while_it_starts_writes_its_file_and_ends(tmp_path: Path) -> None:
    run, steps = tmp_path / "tiny", [(1, {"loss": 4.0}), (2, {"loss": 3.0})]
    written(run, 0, *steps)
    started = trainer(run)
    started.kill()
    started.communicate(timeout=HANG_S)  # until its view has ended, too
    assert rows(FolderStore(run / "wandb").read(file_of(str(run)))) == steps


@pytest.mark.usefixtures("server")
def test_a_view_whose_trainer_was_killed_doesnt_wait_for_wandb_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_FAULT", "hang")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(STANDINS), str(ROOT))))
    written(tmp_path / "tiny", 0, (1, {"loss": 4.0}))
    view = [str(tmp_path / "tiny"), "--wandb", "vision", "--offline", str(tmp_path), "--with-parent"]
    program = f"from workload.runs import curves; curves._ALONE_S = 1; curves.main({view})"
    done = subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL, timeout=HANG_S)
    assert done.returncode == -signal.SIGALRM


def test_signals_to_all_processes_of_a_job_cost_no_step_of_the_trainers_end(
    wandb: StandIn | Package, tmp_path: Path
) -> None:
    run, steps = tmp_path / "tiny", [(1, {"loss": 4.0}), (2, {"loss": 3.0})]
    written(run, 0, *steps)
    started = trainer(run)
    assert started.stdout

    def signalled() -> None:  # as Slurm does, which knows W&B's service by its control group
        for process in [*descendants(started.pid)]:
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(process, number)

    signalled()  # while the view starts
    while "points uploaded" not in (text := started.stdout.readline()):
        assert text, "the view ended"
    signalled()  # while it waits
    written(run, 2, (3, {"loss": 2.0}))
    started.communicate("\n", timeout=HANG_S)
    assert wandb.synced(run / "wandb" / file_of(str(run))) == [*steps, (3, {"loss": 2.0})]


def test_a_view_that_is_killed_leaves_nothing_on_the_disk(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, disk = tmp_path / "tiny", tmp_path / "disk"
    disk.mkdir()
    written(run, 0, (1, {"loss": 4.0}))
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    for name, value in {"TMPDIR": str(disk), "WANDB_FAULT": "hang"}.items():
        monkeypatch.setenv(name, value)
    with Uploader(str(run), ObserveConfig(wandb="team/vision"), 0.2, {}):
        until(lambda: [*disk.glob("wandb-*/wandb/*")])
    assert not [*disk.iterdir()]
    assert len(calls(server)) == 1


def preempted_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let a notice come during a step."""
    reached, calls = Preemption.reached, 0

    def noticed(preemption: Preemption) -> bool:
        nonlocal calls
        stops = reached(preemption)
        calls += 1
        if calls == step - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return stops

    monkeypatch.setattr(Preemption, "reached", noticed)


@pytest.mark.slow
@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("online", [True, False])
def test_a_run_that_is_preempted_and_resumed_is_one_run_of_wandb(
    online: bool, wandb: StandIn | Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if online:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(launch, "Uploader", partial(Uploader, patience_s=HANG_S))
    evaluated = ["observe.eval_path=.", "observe.eval_every=2"]
    start = [*command("seen", 6, 2, "observe.wandb=team/vision", *evaluated), "--dir", str(tmp_path)]
    run = RunFolder(tmp_path / "runs" / "seen")
    with pytest.MonkeyPatch.context() as patch:
        preempted_at(patch, 4)
        assert train(start) == 0
    assert run.json("status.json")["state"] == "preempted"
    assert train(start) == 0
    if online:
        result = wandb.sent(str(run.path))
        assert not (run.path / "wandb").exists()
    else:
        (file,) = run.path.glob("wandb/*/*.wandb")
        assert b"upload-curves" not in file.read_bytes(), "the command is of this machine"
        result = wandb.synced(file)
    assert [step for step, _ in result] == [1, 2, 3, 4, 5, 6]
    assert [step for step, row in result if "eval_loss" in row] == [2, 4, 6]
    assert all({"loss", "learning_rate"} <= row.keys() for _, row in result)
    assert {step: row["loss"].hex() for step, row in result} == {
        step: loss for step, losses in run.losses().items() for loss in losses
    }


@pytest.mark.slow
@pytest.mark.usefixtures("training", "server")
def test_a_run_that_diverges_has_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "Uploader", partial(Uploader, patience_s=HANG_S))
    overrides = ["observe.wandb=team/vision", "optimizer.learning_rate=1e38"]
    assert train([*command("diverged", 20, 5, *overrides), "--dir", str(tmp_path)]) == 2
    run = RunFolder(tmp_path / "runs" / "diverged")
    (file,) = run.path.glob("wandb/*/*.wandb")
    steps = [step for step, _ in rows(file.read_bytes())]
    assert steps == list(range(1, run.json("status.json")["step"] + 1)) != []


@pytest.mark.slow
@pytest.mark.usefixtures("training", "key")
def test_a_wandb_that_fails_leaves_the_run_as_it_is(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_FAULT", "init")
    monkeypatch.setattr(launch, "Uploader", partial(Uploader, patience_s=HANG_S))
    assert train([*command("seen", 4, 2, "observe.wandb=team/vision"), "--dir", str(tmp_path)]) == 0
    run = RunFolder(tmp_path / "runs" / "seen")
    assert run.json("status.json")["state"] == "done"
    output = capfd.readouterr()
    assert "init: the service has ended" in output.out + output.err
    assert f"workload upload-curves {run.path} --wandb team/vision" in output.out + output.err
    assert sorted(run.losses()) == [1, 2, 3, 4]

"""`tpu run`: which program, which slice, and how it ends; the cloud answers as it is told."""

import itertools
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from cli import run
from cli.__main__ import main
from cli.user_code import read_program
from fleet.model import WorkerStatus
from infra.errors import CommandError
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.publish.environment import Target
from tests.cli.call import call
from tests.fleet.command import fleet
from tests.fleet.world import SLICES, Cloud, _world, enter, settings  # noqa: F401
from tests.virtual_time import replace_time

NODE = "tpu-us-east5-a-2"
DONE = WorkerStatus(0.0, "ready", "launch", "done")
FAILED = WorkerStatus(0.0, "ready", "launch", "failed", why="exit status 2: no data", final=True)
INLINE = '# /// script\n# dependencies = ["einops==0.8.2"]\n# ///\nprint("hello")\n'


class Published:
    """Publisher that records its targets, and the bundles that it uploads."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.packed: list[list[str]] = []
        self.uploaded: list[str] = []

    def __call__(
        self, target: Target, lock: str, console: Any, again: str, accept: Callable[[str], None]
    ) -> Any:
        self.targets.append(target)
        self.packed.append(sorted(path.name for path in Path(target.code or "").iterdir()))
        bundle = f"{len(self.targets):064x}"
        accept(bundle)
        self.uploaded.append(bundle)
        return SimpleNamespace(bundle=SimpleNamespace(id=bundle))


class Logs:
    """Lines of the job, each once."""

    def __init__(self, *lines: str):
        self.lines = [*lines]

    def since(self, _: str) -> list[dict[str, str]]:
        result, self.lines = self.lines, []
        return [{"timestamp": "2100-01-01T00:00:00Z", "textPayload": line} for line in result]


@pytest.fixture(name="published")
def _published(world: Cloud, monkeypatch: pytest.MonkeyPatch) -> Published:
    published = Published()
    enter(monkeypatch, world, settings())
    monkeypatch.setattr(run, "from_file", lambda _: settings())
    monkeypatch.setattr(run, "publish", published)
    monkeypatch.setattr(run, "_entries", lambda *_: Logs("step 1", "step 2"))
    monkeypatch.setattr(run, "_LOOK_S", 0.02)
    world.items = lambda *_: iter([])  # type: ignore[attr-defined]
    return published


@pytest.fixture(name="script")
def _script(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    return script


def test_a_script_goes_alone_runs_and_its_end_ends_the_command(
    script: Path, published: Published, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    (script.parent / "secret").write_text("a key")
    world.statuses[NODE] = DONE
    flags = ["--slice", "v6e-16", "--name", "mine", "--yes", "--json"]
    line = ["dev", str(script), *flags, "--", "--lr", "3e-4 5"]
    assert call(run.run, line) == 0
    assert published.packed == [["train.py"]], "nothing beside it"
    reported = capsys.readouterr()
    parsed = json.loads(reported.out)
    assert parsed["run"] == "python train.py --lr '3e-4 5'"
    assert (parsed["condition"], parsed["deleted"], parsed["name"]) == ("done", False, "mine")
    assert (parsed["zones"], parsed["fallbackZones"]) == (["us-east5-a"], ["us-east5-b"])
    assert world.requests == [("create", NODE)]
    assert "  | step 1\n  | step 2\n" in reported.err
    assert f"{NODE} is READY, and billed: $22.45 an hour\n" in reported.err


def test_a_failure_for_good_is_its_exit_status_and_the_slice_goes_if_that_was_asked_for(
    script: Path, published: Published, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    world.statuses[NODE] = FAILED
    assert (
        call(run.run, ["dev", str(script), "--slice", "v6e-1", "--name", "own", "--stop-when-done", "--yes"])
        == 1
    )
    reported = capsys.readouterr().out
    assert f"{NODE}: failed (its work failed: exit status 2: no data)" in reported
    assert "own: its slice is deleted" in reported
    assert world.states[NODE] == ""


def test_detached_it_returns_when_the_node_is_there(
    script: Path, published: Published, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(run.run, [str(script), "--slice", "v6e-1", "--name", "own", "--detach", "--yes"]) == 0
    reported = capsys.readouterr().out
    assert "environment: dev (default)" in reported
    assert "tpu logs dev own --follow" in reported
    assert "tpu fleet delete dev --slice own" in reported
    assert world.states[NODE] == "READY"


def test_logs_that_fail_for_a_moment_are_read_again_and_those_that_are_refused_are_not(
    script: Path, published: Published, world: Cloud, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    world.statuses[NODE] = DONE
    kinds = iter([Kind.TRANSIENT, Kind.PERMISSION])

    class Failing:
        def since(self, _: str) -> list[dict[str, str]]:
            raise RequestError(Failure(next(kinds), "no"))

    monkeypatch.setattr(run, "_entries", lambda *_: Failing())
    assert call(run.run, ["dev", str(script), "--slice", "v6e-1", "--name", "own", "--yes"]) == 0
    assert capsys.readouterr().out.count("its output can't be read here") == 1


def test_without_a_terminal_nothing_is_published_unasked(
    script: Path, published: Published, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match="There is no terminal to ask at"):
        call(run.run, ["dev", str(script), "--slice", "v6e-16", "--name", "own"])
    reported = capsys.readouterr().out
    assert "v6e-16 (4 hosts), spot, in us-east5-a or us-east5-b: $" in reported
    assert "gs://my-project-checkpoints/jobs/own" in reported
    assert published.targets == []
    assert world.requests == []
    assert world.objects == {}


def test_what_is_wrong_with_the_flags_is_said_at_once(
    script: Path, published: Published, world: Cloud
) -> None:
    line = [
        "dev",
        str(script),
        "--slice",
        "v6e-61",
        "--zones",
        "us-central1-b,us-central2-b",
        "--name",
        "No Name",
    ]
    with pytest.raises(CommandError) as wrong:
        call(run.run, [*line, "--yes"])
    output = str(wrong.value)
    assert "--slice v6e-61: is none of v6e-1, v6e-4" in output
    assert "--zones us-central2-b: v6e is in " in output
    assert "--zones us-central1-b: Pulumi.dev.yaml covers us-east5-a, us-east5-b" in output
    assert "fix: tpu:zones: [us-central1-b] in Pulumi.dev.yaml, then tpu up dev network data" in output
    assert "'No Name' can't be a slice's name" in output
    assert published.targets == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--slice", "v6e-61"], "--slice v6e-61: is none of"),
        (["--slice", "v6e-16", "--entry", "x.py"], "--entry x.py"),
        (["--slice", "v6e-16", "--env", "A"], "--env"),
        (["--slice", "v6e-16", "--hours", "5"], "fleet:dollarsPerRun allows $100"),
        (["--slice", "v6e-16", "--hours", "1"], "leads to /etc/hostname, out of the folder"),
    ],
)
def test_a_wrong_request_ends_with_2_before_the_question(
    words: list[str], problem: str, script: Path, published: Published, world: Cloud,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """As docs/reference/cli.md has it."""
    monkeypatch.setattr(run, "from_file", lambda _: settings(**LIMITED))
    (script.parent / "hosts").symlink_to("/etc/hostname")
    path = script if "--entry" in words else script.parent
    assert main(["run", "dev", str(path), "--name", "own", *words]) == 2
    reported = capsys.readouterr()
    assert problem in reported.err
    assert "There is no terminal" not in reported.err
    assert (published.targets, world.requests, world.objects) == ([], [], {})


def test_held_out_tokens_that_are_not_there_are_found_before_the_question(
    tmp_path: Path, published: Published, world: Cloud, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = tmp_path / "mine.toml"
    config.write_text('[observe]\neval_path = "gs://my-project-checkpoints/data/held-out"\n')
    google = SimpleNamespace(json=lambda *_: {})
    monkeypatch.setattr(run.client, "Client", lambda _: google)
    assert main(["run", "dev", str(config), "--slice", "v6e-8", "--name", "own"]) == 2
    error = capsys.readouterr().err
    assert "PROGRAM = observe.eval_path gs://my-project-checkpoints/data/held-out: nothing is there" in error
    assert (published.targets, world.requests) == ([], [])


def test_a_name_of_the_files_is_refused_before_the_question(
    script: Path, published: Published, world: Cloud
) -> None:
    with pytest.raises(
        CommandError, match=r"train: Pulumi.dev.yaml has a slice of this name\n    fix: --name"
    ):
        call(run.run, ["dev", str(script), "--slice", "v6e-16"])


def test_a_folder_goes_whole_and_its_script_is_chosen_with_a_reason(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    folder = tmp_path / "training"
    folder.mkdir()
    (folder / "other.py").write_text("")
    result = read_program(folder, None, None, [], work)
    assert (result.entry, result.requirements) == ("other.py", None)
    assert "the only script of" in result.reason
    (folder / "more.py").write_text("")
    with pytest.raises(
        CommandError, match=r"which script starts\? It has more.py, other.py\n    fix: --entry"
    ):
        read_program(folder, None, None, [], work)
    assert read_program(folder, "more.py", None, ["--x"], work).run == "python more.py --x"
    (folder / "train.py").write_text("")
    (folder / "requirements.txt").write_text("einops\n")
    result = read_program(folder, None, None, [], work)
    assert (result.folder, result.entry, result.requirements) == (
        folder,
        "train.py",
        folder / "requirements.txt",
    )


def test_a_scripts_inline_metadata_names_its_packages(tmp_path: Path, script: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    script.write_text(INLINE)
    result = read_program(script, None, None, [], work)
    assert result.requirements
    assert result.requirements.read_text() == "einops==0.8.2\n"
    given = tmp_path / "given.txt"
    given.write_text("")
    (work / "code").rename(work / "before")
    assert read_program(script, None, given, [], work).requirements == given, "what is given counts"


@pytest.mark.parametrize(
    ("what", "more", "message"),
    [
        ("nowhere.py", {}, "no such file or folder"),
        ("notes.txt", {}, "is no Python script"),
        ("train.py", {"entry": "other.py"}, "is a script already"),
        ("train.py", {"requirements": Path("/nowhere.txt")}, "no such file"),
        ("train.py", {"words": ["x" * 2100]}, "at most 2000 printable characters"),
        ("bad.py", {}, "its inline script metadata can't be read"),
        ("folder", {"entry": "x.py"}, "isn't in"),
        ("folder", {"entry": "half.py"}, r"folder/half\.py:2: '\(' was never closed: print\(\n    fix: "),
    ],
)
def test_what_can_be_no_program_is_refused(
    what: str, more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "bad.py").write_text("# /// script\n# dependencies = [\n# ///\n")
    for name in ("folder", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "folder/half.py").write_text("x = 1\nprint(\n")
    options = {"entry": None, "requirements": None, "words": [], **more}
    with pytest.raises(CommandError, match=message):
        read_program(
            tmp_path / what, options["entry"], options["requirements"], options["words"], tmp_path / "work"
        )


LIMITED = {"dollarsPerRun": 100}


@pytest.mark.parametrize(
    ("more", "flags", "message"),
    [
        (LIMITED, [], "this one's price is unknown: nothing says how long it takes\n    fix: --hours N"),
        (
            LIMITED,
            ["--hours", "5"],
            r"would cost \$112.26 \(\$22.45 an hour, 5 h\), fleet:dollarsPerRun allows",
        ),
        (LIMITED, ["--hours", "3", "--on-demand"], r"would cost \$129.60"),
    ],
)
def test_a_run_above_its_limit_is_refused_before_anything_is_asked_published_or_created(
    more: dict[str, Any], flags: list[str], message: str,
    script: Path, published: Published, world: Cloud, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(run, "from_file", lambda _: settings(**more))
    with pytest.raises(CommandError.__base__, match=message):
        call(run.run, ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--yes", *flags])
    assert published.targets == []
    assert world.requests == []


def test_a_runs_price_is_predicted_and_the_actual_one_stands_beside_it(
    script: Path, published: Published, world: Cloud, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(run, "from_file", lambda _: settings(**LIMITED))
    world.statuses[NODE] = DONE
    line = ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--hours", "4", "--yes"]
    assert call(run.run, [*line, "--json"]) == 0
    reported = capsys.readouterr()
    assert "price     $89.81 ($22.45 an hour, 4 h), predicted" in reported.err
    assert "chip-hours by Google's clock, predicted $89.81" in reported.err
    parsed = json.loads(reported.out)
    assert parsed["predicted_dollars"] == 89.81
    assert parsed["dollars"] is not None


@pytest.mark.parametrize("hours", ["0", "-1", "soon", "inf", "nan", ""])
def test_hours_are_a_time(hours: str, script: Path) -> None:
    with pytest.raises(click.UsageError, match=r"a number of hours above 0, e.g. 1.5"):
        call(run.run, ["dev", str(script), "--slice", "v6e-16", f"--hours={hours}"])


def advised(world: Cloud, script: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int | str | None:
    """End `tpu run` by SIGTERM after some looks, and return its status."""
    pauses, sleep = itertools.count(), time.sleep

    def end(_: float) -> None:
        sleep(0.02)
        if next(pauses) == 6:
            signal.raise_signal(signal.SIGTERM)

    replace_time(monkeypatch, "sleep", end)
    with pytest.raises(SystemExit) as ended:
        call(run.run, ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--yes", *more])
    return ended.value.code


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("READY", f"stopped; {NODE} is READY, and billed: $22.45 an hour"),
        ("CREATING", f"stopped; {NODE} is CREATING, and billed once it is up: $22.45 an hour"),
        ("DELETING", f"stopped; {NODE} is DELETING, and billed until it is gone: $22.45 an hour"),
        ("", "stopped; no slice is up\n"),
    ],
)
def test_a_signal_leaves_with_what_stands_its_price_and_the_command_that_ends_it(
    state: str, line: str, script: Path, published: Published, world: Cloud,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not state:
        world.silent = {"us-east5-a"}
    make = world.make

    def made(*request: str) -> None:
        make(*request)
        world.states[NODE] = state

    monkeypatch.setattr(world, "make", made)
    assert advised(world, script, monkeypatch, "--stop-when-done") == 128 + signal.SIGTERM
    output = capsys.readouterr().err
    assert line in output
    assert "take it down:    tpu fleet delete dev --slice own" in output
    assert "at its end:      deleted by one of those two, and by nothing else" in output


def test_a_signal_before_anything_is_created_says_so(
    script: Path, published: Published, world: Cloud, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
    monkeypatch.setattr(run, "publish", lambda *_, **__: signal.raise_signal(signal.SIGHUP))
    with pytest.raises(SystemExit):
        call(run.run, ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--yes"])
    assert "stopped; nothing was created\n" in capsys.readouterr().err
    assert world.objects == {}


def test_a_signal_during_the_deletion_names_what_completes_it(
    script: Path, published: Published, world: Cloud, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    world.statuses[NODE] = DONE
    monkeypatch.setattr(world, "delete", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit):
        call(run.run, ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--stop-when-done", "--yes"])
    output = capsys.readouterr().err
    assert f"stopped; its deletion isn't over: {NODE} is READY, and billed" in output
    assert "tpu fleet delete dev --slice own" in output


def test_it_ends_with_a_sentence_once_another_command_has_ended_its_fleet(
    script: Path, published: Published, world: Cloud, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    looks = 0

    def ended(_: float) -> None:
        nonlocal looks
        looks += 1
        time.sleep(0.02)
        if looks == 6:
            assert fleet(["delete", "dev", "--slice", "own", "--yes"]) == 0

    monkeypatch.setattr(run.Job, "_print_output", lambda _, seconds: ended(seconds))
    assert call(run.run, ["dev", str(script), "--slice", "v6e-16", "--name", "own", "--yes"]) == 1
    output = capsys.readouterr().out
    assert "own: it was ended elsewhere (deleted by a command): nothing is created\n" in output
    assert world.states[NODE] == ""
    assert [verb for verb, _ in world.requests] == ["create", "delete"]


def test_a_config_that_the_trainer_would_refuse_is_refused_before_anything_is_created(
    tmp_path: Path, published: Published, world: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('base = "tiny.toml"\n[observe]\nwandb = "a/b/c"\n')
    line = ["dev", str(config), "--slice", "v6e-16", "--yes", "--detach"]
    with pytest.raises(CommandError, match=r"observe.wandb = \"a/b/c\": must be ENTITY/PROJECT"):
        call(run.run, line)
    assert not published.targets
    assert not world.requests
    config.write_text('base = "tiny.toml"\n[observe]\nwandb = "team/vision"\n')
    assert call(run.run, line) == 0
    assert len(published.targets) == 1


@pytest.mark.parametrize(("words", "run_of"), [
    ([], "train mine.toml"), (["--name", "own"], "train mine.toml --name own"),
    (["--name", "own", "--", "--name", "first"], "train mine.toml --name first"),
])  # fmt: skip
def test_slices_of_one_config_that_are_named_write_a_run_each(
    words: list[str], run_of: str, tmp_path: Path, published: Published, world: Cloud
) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('base = "tiny.toml"\n')
    assert main(["run", "dev", str(config), "--slice", "v6e-16", "--yes", "--detach", *words]) == 0
    assert [*published.targets[0].runs.values()] == [run_of]


def test_a_config_whose_own_name_is_no_runs_is_run_by_the_slices_name(
    tmp_path: Path, published: Published, world: Cloud
) -> None:
    config = tmp_path / "MyConfig.toml"
    config.write_text('base = "tiny.toml"\n')
    line = ["run", "dev", str(config), "--slice", "v6e-16", "--yes", "--detach", "--name", "own"]
    assert main(line) == 0
    assert [*published.targets[0].runs.values()] == ["train MyConfig.toml --name own"]


@pytest.mark.parametrize(
    ("config", "words", "problem"),
    [
        ("mine.toml", ["--bogus", "1"], "--bogus isn't an option of train"),
        ("mine.toml", ["--set", "nope.x=1"], "--set nope.x isn't a setting of train"),
        ("mine.toml", ["--name", "Big"], "a run is called by a-z, 0-9, '-', '_' and '.', not Big"),
        ("My_Config.toml", [], "a run is called by a-z, 0-9, '-', '_' and '.', not My_Config"),
    ],
)
def test_a_line_that_the_trainer_would_refuse_is_said_with_a_fix(
    config: str, words: list[str], problem: str,
    tmp_path: Path, published: Published, world: Cloud, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / config
    path.write_text('base = "tiny.toml"\n')
    line = ["run", "dev", str(path), "--slice", "v6e-1", "--yes", "--detach"]
    assert main([*line, "--", *words]) == 2
    error = capsys.readouterr().err
    assert f'PROGRAM = "train {" ".join([config, *words])}": {problem}' in error
    assert "the trainer's options stand behind --: -- --name first" in error
    assert (published.targets, world.requests) == ([], [])


def test_a_config_of_the_trainer_is_sent_with_its_folder(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text("[model]\n")
    result = read_program(config, None, None, ["--name", "first"], tmp_path)
    assert (result.folder, result.run) == (tmp_path, "train mine.toml --name first")
    assert "its folder is uploaded whole" in result.reason

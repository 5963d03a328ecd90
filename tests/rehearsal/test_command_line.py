"""The command line: what is wrong is said in words, with an exit status that scripts can use."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from cli.__main__ import main as tpu
from rehearsal import commands as command
from rehearsal.world import life
from rehearsal.world.console import Narrator
from rehearsal.world.layout import Layout, State, started
from tests.virtual_time import replace_time


def main(words: list[str]) -> int:
    return tpu(["rehearsal", *words])


def test_a_scenario_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "defualt"]) == 2
    output = capsys.readouterr().err
    assert "did you mean default" in output
    assert "fix: tpu rehearsal list" in output


def test_a_broken_scenario_makes_no_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.py"
    path.write_text("from rehearsal.scenario import steps\n\nsteps.up('tpus')\n")
    assert main(["run", str(path), "--dir", str(tmp_path / "w")]) == 2
    assert "broken.py:3: layer: 'tpus' is none of storage" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("text", [b"title: [\n", b'title = "\xff"\n'])
def test_a_scenario_that_cannot_be_read(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(text)
    assert main(["run", str(path)]) == 2
    assert "broken.py:1: " in capsys.readouterr().err


def test_an_error_of_the_system_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["down", "--dir", str(tmp_path / "file")]) == 3
    assert "error: " in capsys.readouterr().err


def test_status_without_a_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--dir", str(tmp_path)]) == 3
    output = capsys.readouterr().err
    assert "no world is up" in output
    assert "tpu rehearsal up" in output


def test_down_without_a_world_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--dir", str(tmp_path / "none")]) == 0
    assert "nothing is up" in capsys.readouterr().out


def test_list_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in ("default", "kills", "pod"))


def test_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Usage:" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "fast"])
def test_a_clock_that_does_not_run(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", f"--clock={rate}"]) == 2
    assert "--clock" in capsys.readouterr().err


def test_a_refusal_leaves_no_folder_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("TPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert main(["shell", "-c", "true"]) == 3
    assert not (tmp_path / "cache").exists()


def test_what_a_killed_run_left_is_removed_by_the_next_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while its world was made, when there was no supervisor yet to clean up behind it."""
    monkeypatch.setenv("TPU_CACHE", str(tmp_path))
    monkeypatch.setattr(command.life, "require_machine", lambda: None)
    worlds, names = tmp_path / "worlds", ("run-killed", "run-pid-reused", "run-locked", "run-up", "other")
    current, since = os.getpid(), started(os.getpid()) or 0
    for name in names:
        layout = Layout(worlds / name)
        layout.program.mkdir(parents=True)
        if name != "other":
            layout.marker.touch()
        if name in ("run-pid-reused", "run-up"):
            State(current, since, current, since if name == "run-up" else since - 1, {}).save(layout.state)

    def left() -> set[str]:
        fresh = command.new_layout(None, Narrator(), "run")
        fresh.root.rmdir()
        return {path.name for path in worlds.iterdir()}

    line = ["flock", "--no-fork", str(worlds / "run-locked"), "sh", "-c", "echo locked; exec sleep 60"]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as living:
        assert living.stdout is not None
        living.stdout.readline()
        assert left() == {"run-locked", "run-up", "other"}
        living.kill()
    assert left() == {"run-up", "other"}


def test_the_remains_of_a_dead_world_give_way_to_a_new_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "w")
    layout.program.mkdir(parents=True)
    layout.marker.touch()
    State(os.getpid(), 1, os.getpid(), 1, {}).save(layout.state)
    life.require_free(layout)
    assert list(layout.root.iterdir()) == []
    layout.release()


def test_without_a_terminal_a_step_prints_interim_results_every_15_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = iter([0.0, 0.0, 14.0, 16.0, 16.0, 20.0, 32.0, 32.0, 40.0])  # twice for each line
    replace_time(monkeypatch, "monotonic", lambda: next(seconds))
    printed = io.StringIO()
    with Narrator(Console(file=printed)).step("wait") as note:
        for text in ("early", "first", "early", "second"):
            note.text = text
    assert " ".join(printed.getvalue().split()) == "… wait first second ok wait 40.0 s second"


@pytest.mark.parametrize("words", [["up"], ["run"], ["shell", "-c", "true"]])
def test_another_user_than_root_is_refused_with_a_fix(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--dir", str(tmp_path / "w")]) == 3
    output = capsys.readouterr().err
    assert "needs root" in output
    assert "fix: sudo" in output
    assert list(tmp_path.rglob("w/*")) == []


def test_tools_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["up", "--dir", str(tmp_path / "w")]) == 3
    output = capsys.readouterr().err
    assert "not installed: unshare, nsenter" in output
    assert "fix: make doctor" in output

"""A run that is to train longer than it was begun for: only when that is asked for, and it is on record."""

from pathlib import Path

import pytest

from tests.workload.slice import RunFolder, command, damage, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("training")]


def line(folder: Path, steps: int, *more: str) -> list[str]:
    return [*command("run", steps, 2), "--dir", str(folder), *more]


def test_a_run_is_extended_only_when_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder(tmp_path / "runs" / "run")
    assert train(line(tmp_path, 4)) == 0
    assert train(line(tmp_path, 8)) == 2
    refusal = capsys.readouterr().err
    assert "train.steps was 4, is 8" in refusal
    assert "fix: continue to 8 steps by --extend" in refusal

    before = run.losses()
    assert train(line(tmp_path, 8, "--extend")) == 0
    assert "extended from 4 to 8 steps" in capsys.readouterr().out
    assert [event["step"] for event in run.events("restore")] == [4]
    assert {step: run.losses()[step] for step in before} == before, "what was trained stays as it was"
    assert sorted(run.losses()) == [*range(1, 9)]
    assert run.json("config.json")["extended"] == [{"from": 4, "to": 8}]
    assert run.json("final.json")["step"] == 8

    # The same command again, as a slice's service does after a preemption; and one that asks for fewer.
    assert train(line(tmp_path, 8, "--extend")) == 0
    assert run.json("config.json")["extended"] == [{"from": 4, "to": 8}], "once"
    assert train(line(tmp_path, 6, "--extend")) == 2
    assert "train.steps was 8, is 6" in capsys.readouterr().err


def test_a_run_whose_last_checkpoint_is_damaged_is_extended_from_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder(tmp_path / "runs" / "run")
    assert train(line(tmp_path, 4)) == 0
    before = run.losses()
    damage(run.path / "checkpoints" / "4")
    assert train(line(tmp_path, 8, "--extend", "--set=observe.strict=true")) == 0, capsys.readouterr().err
    assert [event["step"] for event in run.events("restore")] == [2]
    assert not run.events("loss-differs")
    assert sorted(run.losses()) == [*range(1, 9)]
    assert run.losses()[4] != before[4], "its learning rate is that of the new schedule"
    assert run.json("final.json")["step"] == 8


def test_only_the_number_of_steps_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(line(tmp_path, 4)) == 0
    assert train(line(tmp_path, 8, "--extend", "--set=train.seed=5")) == 2
    refusal = capsys.readouterr().err
    assert "train.seed was" in refusal
    assert "by --extend" not in refusal

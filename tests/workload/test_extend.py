"""A run that is to train longer than it was begun for: only when that is asked for, and it is on record."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workload.slice import SETTINGS, RunFolder, Workers

pytestmark = pytest.mark.slow


def train(tokens: Path, folder: Path, name: str, steps: int, *more: str) -> Workers:
    settings = [f"--set={one}" for one in (*SETTINGS, f"train.steps={steps}", "checkpoint.every_steps=2")]
    settings.append("--set=optimizer.warmup_steps=1")
    line = ["tiny.toml", "--name", "run", "--dir", str(folder), *settings, *more]
    started = Workers(1, line, {"DATA_DIR": str(tokens)}, folder / name)
    started.wait()
    return started


def test_a_run_is_extended_only_when_that_is_asked_for(tokens: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs" / "run")
    assert train(tokens, tmp_path, "first", 4).wait() == [0]
    refused = train(tokens, tmp_path, "refused", 8)
    assert refused.wait() == [2]
    assert "train.steps was 4, is 8" in refused.output()
    assert "fix: --extend continues it to 8 steps" in refused.output()

    before = run.losses()
    longer = train(tokens, tmp_path, "longer", 8, "--extend")
    assert longer.wait() == [0], longer.output()
    assert "extended from 4 to 8 steps" in longer.output()
    assert [event["step"] for event in run.events("restore")] == [4]
    assert {step: run.losses()[step] for step in before} == before, "what was trained stays as it was"
    assert sorted(run.losses()) == [*range(1, 9)]
    recorded: dict[str, Any] = json.loads((run.path / "config.json").read_text())
    assert recorded["extended"] == [{"from": 4, "to": 8}]
    assert run.json("final.json")["step"] == 8

    # The same command again, as a slice's service does after a preemption; and one that asks for fewer.
    assert train(tokens, tmp_path, "again", 8, "--extend").wait() == [0]
    assert run.json("config.json")["extended"] == [{"from": 4, "to": 8}], "once"
    fewer = train(tokens, tmp_path, "fewer", 6, "--extend")
    assert fewer.wait() == [2]
    assert "train.steps was 8, is 6" in fewer.output()


def test_only_the_number_of_steps_may_differ(tokens: Path, tmp_path: Path) -> None:
    assert train(tokens, tmp_path, "first", 4).wait() == [0]
    other = train(tokens, tmp_path, "other", 8, "--extend", "--set=train.seed=5")
    assert other.wait() == [2]
    assert "train.seed was" in other.output()
    assert "--extend continues" not in other.output()

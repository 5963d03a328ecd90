"""The commands of docs/queue.md, executed as printed, with the settings that the page has."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import main
from infra.layers.queue.jobs.submission import curves
from infra.settings.schema import Settings
from rehearsal.scenario.guides import commands
from tests.infra.layers.queue.test_submission import settings
from workload.runs import location

PAGE = Path(__file__).resolve().parents[2] / "docs" / "queue.md"
SINGLE, MULTI, EXTRACTION, UPLOADER = (
    "single-slice.yaml", "multi-slice.yaml", "extraction.yaml", "uploader.yaml",
)  # fmt: skip


def configured(blocks: int = 1) -> Settings:
    """The first blocks of settings on the page, with digests that are some."""
    text = PAGE.read_text(encoding="utf-8").replace("DIGEST", "0" * 64)
    matches = re.findall(r"^    config:\n((?:      .*\n)+)", text, re.MULTILINE)
    merged: dict[str, Any] = {}
    for block in matches[:blocks]:
        merged |= yaml.safe_load(block)
    assert len(matches) >= blocks
    return settings(**merged)


def examples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """What the commands of the section write, by file."""
    monkeypatch.chdir(folder)
    for line in commands(PAGE)["Examples"].splitlines():
        uploads = UPLOADER in line
        monkeypatch.setattr("cli.job.from_file", lambda _, uploads=uploads: configured(2 if uploads else 1))
        program, *words = shlex.split(line)
        assert program == "tpu"
        assert main(words) == 0
    return {path.name: yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")}


def test_the_examples_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = examples(tmp_path, monkeypatch)
    assert {*result} == {SINGLE, MULTI, EXTRACTION, UPLOADER}
    jobs = {name: item["spec"]["replicatedJobs"] for name, item in result.items()}
    assert {name: [(item["name"], item["replicas"]) for item in entry] for name, entry in jobs.items()} == {
        SINGLE: [("slice", 1)], MULTI: [("slice", 2)], EXTRACTION: [("slice", 2)],
        UPLOADER: [("slice", 1)],
    }  # fmt: skip
    lines = {
        name: item[0]["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
        for name, item in jobs.items()
    }
    assert [line[-5:-1] for line in lines.values() if "extract" in line] == [
        ["workload", "extract", "qwen2.5-0.5b.toml", "--stream"]
    ]
    assert result[EXTRACTION]["metadata"]["namespace"] == "speech"
    first, second, *_ = (tmp_path / SINGLE).read_text().splitlines()
    assert first == (
        "# gcloud container clusters get-credentials tpu --location us-east5 --project my-project"
        " --dns-endpoint"
    )
    assert second == "# kubectl apply --server-side -f single-slice.yaml"


def test_curves_are_looked_for_where_the_trainer_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tensorboard/` of the run, as tests/workload/test_slice.py finds it."""
    monkeypatch.setenv("CHECKPOINT_BUCKET", "my-project-checkpoints")
    url, problems = location.of_run("runs", "tiny", None)
    assert not problems
    assert curves(configured(), "tiny") == f"{url}/tensorboard"
    assert url.startswith(f"{curves(configured())}/")


@pytest.mark.parametrize("run", ["gs://my-project-checkpoints/runs/tiny", "../tiny", "Tiny"])
def test_what_is_no_name_of_a_run_is_refused(
    run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.job.from_file", lambda _: configured())
    assert main(["job", "tensorboard", "dev", run]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"RUN: {run} is no name of a run" in shown.err
    assert "fix: the RUN of gs://my-project-checkpoints/runs/RUN" in shown.err


def test_the_command_starts_tensorboard_on_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.job.from_file", lambda _: configured())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["job", "tensorboard", "dev", "tiny"]) == 1
    shown = capfd.readouterr()
    line = "tensorboard --logdir gs://my-project-checkpoints/runs/tiny/tensorboard --port 6006"
    assert shown.out.strip() == line
    assert "fix: pip install tensorboard" in shown.err
    started: list[list[str]] = []
    (tmp_path / "tensorboard").write_text("#!/bin/sh\n")
    (tmp_path / "tensorboard").chmod(0o755)
    monkeypatch.setattr("os.execvp", lambda program, words: started.append([program, *words[1:]]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["job", "tensorboard", "dev", "tiny"])
    assert started == [shlex.split(line)]

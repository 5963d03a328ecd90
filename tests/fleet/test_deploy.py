"""A deployment: which commands run, in which order, and what stops it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fleet import deploy
from fleet.controller import Controller
from fleet.environment import Environment
from fleet.errors import FleetError
from fleet.model import View, WorkerStatus
from infra.errors import InputError
from infra.slices.nodes import nodes
from infra.slices.preflight import Verdict
from tests.fleet.command import fleet
from tests.fleet.world import SLICES, Cloud, _world, enter, settings  # noqa: F401

EXTRACT = ["deploy", "dev", "--slice", "extract"]


@pytest.fixture(name="ran")
def _ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    ran: list[list[str]] = []

    def run(line: Any) -> int:
        ran.append(list(line))
        return 0

    monkeypatch.setattr(deploy, "_run", run)
    monkeypatch.setattr(deploy, "_POLL_S", 0.01)
    return ran


def test_samples_are_dealt_out_to_as_many_streams_as_members_and_then_published(
    world: Cloud, ran: list[list[str]]
) -> None:
    world.states |= {"tpu-us-east5-a-1": ""}
    words = "--source a.jsonl --max-samples 9 --create-tpus --yes -- --id id"
    line = [*EXTRACT, *words.split()]
    assert fleet(line) == 0
    assert ran == [
        [
            "-m", "workload", "data", "streams", "--streams", "4", "--out", "gs://b/streams", "--source",
            "a.jsonl", "--max-samples", "9", "--id", "id",
        ],
        ["-m", "cli", "publish", "dev"],
    ]  # fmt: skip
    assert world.requests == [("create", "tpu-us-east5-a-1")]


def test_a_member_that_was_made_in_another_zone_is_waited_for_there(
    world: Cloud, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = [{"name": "extract", "acceleratorType": "v6e-8", "zones": ["us-east5-a"], "count": 2,
             "fallbackZones": ["us-east5-b"],
             "run": "extract qwen2.5-0.5b.toml --stream gs://b/streams"}]  # fmt: skip
    cloud = Cloud(settings(home))
    enter(monkeypatch, cloud, settings(home))
    cloud.states["tpu-us-east5-a-1"], cloud.dry = "", {"us-east5-a"}
    assert fleet([*EXTRACT, "--skip-dataset", "--create-tpus", "--yes", "--timeout-s", "5"]) == 0
    assert cloud.zones["tpu-us-east5-b-0"] == "us-east5-b"


@pytest.mark.parametrize(
    ("flags", "modules", "created"),
    [
        (["--skip-dataset", "--create-tpus", "--yes"], ["cli"], True),
        (["--skip-dataset", "--skip-launch"], ["cli"], False),
        (["--source", "a", "--skip-launch"], ["workload", "cli"], False),
        (["--source", "a", "--dry-run"], [], False),
    ],
)
def test_parts_can_be_left_out(
    flags: list[str], modules: list[str], created: bool, world: Cloud, ran: list[list[str]]
) -> None:
    world.states["tpu-us-east5-a-1"] = ""
    assert fleet([*EXTRACT, *flags]) == 0
    assert [line[1] for line in ran] == modules
    assert bool(world.requests) == created


OF_A_MODEL = "--set model.weights=gs://my-project-checkpoints/data/qwen"


@pytest.mark.parametrize("flags", [["--dry-run"], []])
def test_samples_that_would_be_bytes_for_a_model_with_a_tokenizer_are_refused(
    flags: list[str],
    ran: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = f"extract qwen2.5-0.5b.toml --stream gs://b/streams {OF_A_MODEL}"
    meant = settings([{**SLICES[1], "run": run}])
    enter(monkeypatch, cloud := Cloud(meant), meant)
    line = [*EXTRACT, "--source", "a", *flags]
    assert fleet([*line, "--", "--id", "id"]) == 1
    error = capsys.readouterr().err
    assert "gs://my-project-checkpoints/data/qwen has a tokenizer, and the samples would be bytes" in error
    assert "fix: add -- --tokenizer FOLDER" in error
    assert not ran
    assert fleet([*line, "--skip-launch", "--", "--tokenizer=qwen/"]) == 0
    cloud.missing.add("data/qwen/tokenizer.json")
    assert fleet([*line, "--skip-launch"]) == 0


def test_streams_that_a_deployment_makes_are_not_missed_and_weights_are(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = f"extract qwen2.5-0.5b.toml --stream gs://b/streams {OF_A_MODEL}"
    meant = settings([{**SLICES[1], "run": run}])
    enter(monkeypatch, cloud := Cloud(meant), meant)
    cloud.states["tpu-us-east5-a-1"], cloud.missing = "", {"streams/", "data/qwen/tokenizer.json"}
    line = [*EXTRACT, "--create-tpus", "--dry-run"]
    assert fleet([*line, "--source", "a"]) == 0
    assert fleet([*line, "--skip-dataset"]) == 2
    assert "--stream gs://b/streams: nothing is there" in capsys.readouterr().err
    cloud.missing.add("data/qwen/")
    assert fleet([*line, "--source", "a"]) == 2
    assert "model.weights gs://my-project-checkpoints/data/qwen: nothing is there" in capsys.readouterr().err


def test_a_creation_is_refused_what_its_program_would_refuse(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verdict_on(run: str, *_: Any) -> Verdict:
        if refused:
            raise InputError(f"`{run}`: extract.points = mlp_out.40: the model has layers 0 to 23")
        return Verdict("it stores 3 GB", warn=False)

    monkeypatch.setattr("infra.slices.preflight.verdict_on", verdict_on)
    world.states["tpu-us-east5-a-1"], refused = "", False
    assert fleet(["create", "dev", "--dry-run"]) == 0
    assert "it stores 3 GB" in capsys.readouterr().out
    refused = True
    assert fleet(["create", "dev", "--yes"]) == 2
    assert "mlp_out.40: the model has layers 0 to 23" in capsys.readouterr().err
    assert not world.requests


def test_a_step_that_fails_ends_it(
    world: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.states["tpu-us-east5-a-1"] = ""
    monkeypatch.setattr(deploy, "_run", lambda line: 3)
    assert fleet([*EXTRACT, "--source", "a", "--create-tpus", "--yes"]) == 1
    assert not world.requests
    assert "ended with 3" in capsys.readouterr().err


def test_it_is_one_whole_fleet_that_takes_streams(world: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, result in (
        ([], "a deployment is one fleet's"),
        (["--slice", "train"], "a deployment is one fleet's"),
        (["--slice", "extract", "--zones", "us-east5-b"], "members 1, 3 alone can't take all streams"),
    ):
        assert fleet(["deploy", "dev", "--skip-dataset", *flags]) == 1
        assert result in capsys.readouterr().err
    several = [node for node in nodes(settings()) if node.slice == "extract"]
    for run in (None, "train tiny.toml", "extract qwen2.5-0.5b.toml --stream gs://b/stream_000.safetensors"):
        with pytest.raises(FleetError, match="--stream gs://BUCKET/FOLDER"):
            deploy.commands("dev", [replace(item, run=run) for item in several], None)
    assert fleet(EXTRACT) == 1
    assert "--skip-dataset" in capsys.readouterr().err


def test_waiting_ends_with_the_first_that_failed_or_with_the_time(world: Cloud) -> None:
    cloud = world
    fleet = Environment(settings(), nodes(settings()), cloud, cloud.stack)  # type: ignore[arg-type]
    output: list[str] = []

    deploy.wait_for_all(fleet.controller(), 5, output.append, 0.01)
    assert len(output) == 5
    observation = cloud.observe

    def with_words(status: WorkerStatus) -> Controller:
        def observe(zones: Sequence[str]) -> View:
            result = observation(zones)
            return replace(result, statuses={**(result.statuses or {}), "train": [status]})

        cloud.observe = observe  # type: ignore[method-assign]
        return fleet.controller()

    late = with_words(WorkerStatus(cloud.at_s + 60, "failed", "mount-data"))
    with pytest.raises(FleetError, match="train: its boot failed at mount-data"):
        deploy.wait_for_all(late, 5, output.append, 0.01)
    late = with_words(WorkerStatus(cloud.at_s + 999, "booting", "python"))
    with pytest.raises(FleetError, match=r"1 of 5 don't work .*train: starting, at python"):
        deploy.wait_for_all(late, 0.1, output.append, 0.01)

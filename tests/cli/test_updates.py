"""`tpu plan`, `up` and `down`: one question, and nothing without a yes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import updates
from cli.__main__ import main
from infra.engine import plan as planning
from infra.engine.registry import layers
from infra.settings.sources import ROOT
from tests.cli.call import call
from tests.infra import declared
from tests.infra.conftest import FakePulumi
from tests.infra.engine.test_plan import EVENTS
from tests.infra.recording import BASE, OFF

ON = [layer for layer in layers() if layer.name not in OFF]
"""Layers that the settings here have."""
LAYERS = [layer.name for layer in ON]
PUBLISHED = {"tpu:bundle": "ab" * 32}


@pytest.fixture
def root(tmp_path: Path, pulumi_cli: FakePulumi) -> Path:
    folder = tmp_path / "project"
    for layer in layers():
        (folder / layer.directory).mkdir(parents=True, exist_ok=True)
        (folder / layer.directory / "Pulumi.yaml").write_text(
            (ROOT / layer.directory / "Pulumi.yaml").read_text()
        )
    (folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": {**BASE, **PUBLISHED}}))
    pulumi_cli.answer("stack ls", [{"name": "dev"}])
    pulumi_cli.answer("stack export", {"deployment": {}})
    pulumi_cli.answer("whoami", {"url": "https://example.com/me"})
    pulumi_cli.log(*EVENTS)
    return folder


def updated(pulumi: FakePulumi, verb: str) -> list[str]:
    return [folder for folder, arguments, _ in pulumi.calls if arguments[0] == verb]


def test_up_without_a_terminal_changes_nothing_and_says_how(
    root: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception, match="There is no terminal to ask at\n    fix: --yes"):
        call(updates.up, ["dev"], root)
    assert updated(pulumi_cli, "preview")
    assert not updated(pulumi_cli, "up")


def test_up_shows_the_plan_and_brings_all_layers_up_in_their_order(
    root: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(updates.up, ["dev", "--yes"], root) == 0
    assert updated(pulumi_cli, "up") == [str(root / layer.directory) for layer in ON]
    output = capfd.readouterr().out
    assert output.index("$/hour") < output.index("== storage ==") < output.index("== tpu ==")
    assert output.splitlines()[-1] == "up; next: tpu status dev"
    ups = [arguments for _, arguments, _ in pulumi_cli.calls if arguments[0] == "up"]
    assert all({"--yes", "--skip-preview"} <= set(item) for item in ups), "one question, which was answered"


def test_up_of_some_layers_touches_no_other(root: Path, pulumi_cli: FakePulumi) -> None:
    assert call(updates.up, ["dev", "network", "storage", "--yes"], root) == 0
    assert updated(pulumi_cli, "up") == [
        str(root / "infra/layers/storage"),
        str(root / "infra/layers/network"),
    ]
    assert sorted(updated(pulumi_cli, "preview")) == sorted(updated(pulumi_cli, "up"))


NO_SLICES = {"tpu:slices": [], "tpu:zones": ["us-east5-b"]}
QUEUE = {
    **NO_SLICES,
    "gke:tpuPools": [
        {"name": name, "acceleratorType": kind, "zone": "us-east5-b"}
        for name, kind in (("train", "v6e-16"), ("small", "v6e-8"))
    ],
    "gke:namespaces": ["vision", "text"],
    "queue:teams": [{"name": name, "members": ["user:ada@example.com"]} for name in ("vision", "text")],
}
SLURM = declared.OFF["slurm"]
JOB = "tpu job submit dev vision --pool train -- train tiny.toml"
SBATCH = "tpu slurm submit dev job.sbatch"


@pytest.mark.parametrize(("more", "given", "others_up", "following"), [
    ({}, "tpu", True, ["tpu status dev"]),
    ({}, "storage network", False, ["tpu up dev"]),
    ({}, "storage network", True, ["tpu status dev"]),
    (NO_SLICES, "", False, ["tpu doctor dev"]),
    (QUEUE, "", False, [JOB]),
    (QUEUE, "storage", False, ["tpu up dev"]),
    ({**SLURM, **NO_SLICES}, "", False, [SBATCH]),
    (SLURM, "", False, ["tpu status dev", SBATCH]),
    (declared.OFF["pipeline"], "pipeline", False, ["tpu pipeline run dev gs://my-project-raw/FOLDER/"]),
])  # fmt: skip
def test_up_names_the_next_command_of_the_layers_that_are_up(
    more: dict[str, Any], given: str, others_up: bool, following: list[str],
    root: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (root / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": {**BASE, **PUBLISHED, **more}}))
    monkeypatch.setattr(planning, "_require_present", lambda *_: None)
    if others_up:
        pulumi_cli.answer("stack export", {"deployment": {"resources": [{"type": "pulumi:pulumi:Stack"}]}})
    assert call(updates.up, ["dev", *given.split(), "--yes"], root) == 0
    *_, end = capfd.readouterr().out.partition("\nup; next: ")
    assert [line.strip() for line in end.splitlines()] == following


def test_up_with_nothing_to_change_asks_nothing(
    root: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.log(EVENTS[0])
    assert call(updates.up, ["dev"], root) == 0
    assert not updated(pulumi_cli, "up")
    assert capfd.readouterr().out.splitlines()[-1] == "no changes"


def test_up_publishes_the_first_bundle_before_the_slices(
    root: Path, pulumi_cli: FakePulumi, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {key: value for key, value in BASE.items() if key != "tpu:bundle"}
    (root / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": config}))
    before: list[list[str]] = []
    monkeypatch.setattr(updates, "_publish", lambda environment: before.append(updated(pulumi_cli, "up")))
    assert call(updates.up, ["dev", "--yes"], root) == 0
    assert before == [[str(root / f"infra/layers/{name}") for name in LAYERS[:-1]]]


def test_a_plan_that_failed_is_not_applied(
    root: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("preview", "error: no plugin", status=255)
    with pytest.raises(Exception, match="`pulumi preview` of storage, data, network, tpu failed"):
        call(updates.up, ["dev", "--yes"], root)
    assert not updated(pulumi_cli, "up")
    assert capfd.readouterr().out.count("error: no plugin") == 4


def test_json_is_all_of_standard_output(
    root: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(updates.up, ["dev", "--yes", "--json"], root) == 0
    parsed = json.loads(capfd.readouterr().out)
    assert parsed["applied"]
    assert [item["layer"] for item in parsed["layers"]] == LAYERS
    assert call(updates.plan, ["dev", "--json"], root) == 0
    assert json.loads(capfd.readouterr().out)["layers"][0]["changes"]


def resources(*names: str) -> dict[str, object]:
    stack = {"urn": "urn:pulumi:dev::tpu::pulumi:pulumi:Stack::tpu-dev", "type": "pulumi:pulumi:Stack"}
    real = [
        {
            "urn": f"urn:pulumi:dev::tpu::gcp:tpu/v2Vm:V2Vm::{name}",
            "type": "gcp:tpu/v2Vm:V2Vm",
            "custom": True,
        }
        for name in names
    ]
    return {"deployment": {"resources": [stack, *real]}}


def test_down_lists_what_goes_asks_once_and_takes_the_slices_alone(
    root: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("stack export", resources("train", "extract"))
    with pytest.raises(Exception, match="Take them down in dev\\? There is no terminal"):
        call(updates.down, ["dev"], root)
    assert not updated(pulumi_cli, "destroy")
    assert call(updates.down, ["dev", "--yes"], root) == 0
    assert updated(pulumi_cli, "destroy") == [str(root)]
    output = capfd.readouterr().out
    assert "  - gcp:tpu/v2Vm:V2Vm  extract\n  - gcp:tpu/v2Vm:V2Vm  train\ntpu: 2 resources\n" in output
    assert output.splitlines()[-1] == "still up, and billed by the hour: data; next: tpu down dev data"


def test_down_takes_nothing_of_what_it_cannot_finish(
    root: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    held = resources("train", "extract")
    held["deployment"]["resources"][-1]["protect"] = True  # type: ignore[index]
    pulumi_cli.answer("stack export", held)
    for words in (["down", "dev", "--yes"], ["infra", "down", "dev", "tpu", "--yes", "--skip-preview"]):
        assert main(words, root) == 1
        assert "tpu = protected: extract: what is protected is never destroyed" in capfd.readouterr().err
    assert not updated(pulumi_cli, "destroy")


def test_down_where_nothing_is_up_says_so(
    root: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(updates.down, ["dev"], root) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "nothing is up"


@pytest.mark.parametrize("verb", ["plan", "up", "down"])
def test_a_layer_that_is_not_there_is_said_before_pulumi_is_asked(
    verb: str, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "dev", "tpus"]) == 2
    known = ", ".join(layer.name for layer in layers())
    assert f"error: no layer tpus\n    fix: one of {known}\n" in capfd.readouterr().err
    assert pulumi_cli.calls == []


def test_what_a_layer_prints_on_its_way_down_is_not_in_the_json(
    root: Path, pulumi_cli: FakePulumi, capfd: pytest.CaptureFixture[str]
) -> None:
    pulumi_cli.answer("stack export", resources("train"))
    assert call(updates.down, ["dev", "--yes", "--json"], root) == 0
    output = capfd.readouterr()
    assert json.loads(output.out) == {"environment": "dev", "down": {"tpu": 1}}
    assert "tpu: destroyed" in output.err


def test_layers_go_down_the_last_one_first(root: Path, pulumi_cli: FakePulumi) -> None:
    held = {"type": "gcp:compute/network:Network", "urn": "urn:pulumi:dev::p::t::one", "custom": True}
    pulumi_cli.answer("stack export", {"deployment": {"resources": [held]}})
    assert main(["down", "dev", "storage", "tpu", "network", "--yes"], root) == 0
    folders = {layer.name: layer.directory for layer in layers()}
    order = [str(root / folders[name]) for name in ("tpu", "network", "storage")]
    assert [str(Path(folder)) for folder in updated(pulumi_cli, "destroy")] == order

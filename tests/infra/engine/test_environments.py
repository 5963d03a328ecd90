"""Two environments of one folder that name the same resource at Google."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.doctor import checks
from infra.doctor.checks import Target
from infra.doctor.finding import MISSING, OPTIONAL
from infra.engine.before import refuse_to_apply
from infra.engine.environments import shared_names
from infra.engine.plan import plan
from infra.engine.settings import from_file
from infra.errors import CommandError, SettingsError
from infra.google.client import Client
from tests.infra.conftest import FakePulumi
from tests.infra.declared import EVERYTHING, OFF
from tests.infra.recording import BASE

SOON = (date.today() + timedelta(days=30)).isoformat()
OTHER_NAMES: dict[str, Any] = {
    "storage:bucketName": "my-project-eu",
    "storage:serviceAccountId": "tpu-training-eu",
    "network:name": "tpu-eu",
    "data:diskPrefix": "tokens-eu",
    "tpu:slices": [{**BASE["tpu:slices"][0], "name": "train-eu"}],
}


def write(folder: Path, environment: str, changes: dict[str, Any]) -> None:
    config = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    (folder / f"Pulumi.{environment}.yaml").write_text(yaml.safe_dump({"config": config}))


def problems(folder: Path, environment: str = "eu") -> dict[str, str]:
    shared, _ = shared_names(from_file(environment, folder), folder)
    return {problem.path: str(problem) for problem in shared}


def test_every_shared_name_is_refused_with_its_setting_and_the_other_file(tmp_path: Path) -> None:
    write(tmp_path, "dev", {})
    write(tmp_path, "eu", {})
    refused = problems(tmp_path)
    assert set(refused) == {
        "storage:bucketName", "storage:serviceAccountId", "network:name", "data:diskPrefix",
        "tpu:slices[0].name",
    }  # fmt: skip
    assert all("Pulumi.dev.yaml" in text for text in refused.values())
    assert "data:diskPrefix = nothing" in refused["data:diskPrefix"], "derived of the snapshot"


@pytest.mark.parametrize("missing", sorted(OTHER_NAMES))
def test_one_shared_name_is_enough(tmp_path: Path, missing: str) -> None:
    write(tmp_path, "dev", {})
    write(tmp_path, "eu", OTHER_NAMES)
    assert problems(tmp_path) == {}
    write(tmp_path, "eu", {key: value for key, value in OTHER_NAMES.items() if key != missing})
    expected = "tpu:slices[0].name" if missing == "tpu:slices" else missing
    assert set(problems(tmp_path)) == {expected}


def test_names_of_another_project_are_other_names_and_a_bucket_is_one_in_the_world(tmp_path: Path) -> None:
    write(tmp_path, "dev", {})
    write(tmp_path, "eu", {"gcp:project": "other-project"})
    assert set(problems(tmp_path)) == {"storage:bucketName"}


def test_a_file_with_problems_hides_no_other(tmp_path: Path) -> None:
    write(tmp_path, "bad", {"storage:bucketNam": "x"})
    write(tmp_path, "dev", {})
    write(tmp_path, "eu", {**OTHER_NAMES, "network:name": None})
    assert set(problems(tmp_path)) == {"network:name"}
    assert shared_names(from_file("eu", tmp_path), tmp_path)[1] == ["bad"]


def test_clusters_functions_and_topics_are_compared_too(tmp_path: Path) -> None:
    everything = {key: value for layer in OFF.values() for key, value in layer.items()}
    topic = {"monitoring:channels": EVERYTHING["monitoring:channels"]}
    write(tmp_path, "dev", {**everything, **topic})
    write(tmp_path, "eu", {**everything, **topic, **OTHER_NAMES})
    assert {"gke:clusterName", "gke:nodeAccountId", "pipeline:name", "pipeline:rawBucketName"} <= set(
        problems(tmp_path)
    )
    assert "monitoring:channels[1].topic" in problems(tmp_path)


def test_a_plan_names_all_problems_of_the_files_before_anything_is_asked(
    tmp_path: Path, pulumi_cli: FakePulumi
) -> None:
    write(tmp_path, "dev", {})
    write(tmp_path, "eu", {"policy:enforcement": "mandatory"})
    with pytest.raises(SettingsError) as refused:
        plan("eu", tmp_path)
    paths = {problem.path for problem in refused.value.problems}
    assert {"storage:bucketName", "monitoring:budgetPerMonth"} < paths
    assert "policy:exceptions" in str(refused.value)
    assert not pulumi_cli.calls


@pytest.mark.parametrize("way", [
    {"policy:enforcement": "advisory"},
    {"policy:exceptions": [
        {"rule": "PL22", "resource": "*-eu", "reason": "one budget of all projects", "until": SOON}
    ]},
])  # fmt: skip
def test_an_environment_may_do_without_a_budget_by_either_way(tmp_path: Path, way: dict[str, Any]) -> None:
    write(tmp_path, "eu", way)
    refuse_to_apply(from_file("eu", tmp_path), tmp_path)


def test_an_exception_for_one_stack_excuses_no_other(tmp_path: Path) -> None:
    exception = {"rule": "PL22", "resource": "data-eu", "reason": "the disks are free", "until": SOON}
    write(tmp_path, "eu", {"policy:exceptions": [exception]})
    with pytest.raises(SettingsError, match="PL22"):
        refuse_to_apply(from_file("eu", tmp_path), tmp_path)


def test_doctor_names_the_setting_and_the_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "dev", {})
    write(tmp_path, "eu", {**OTHER_NAMES, "network:name": None})
    monkeypatch.setattr(checks, "shared_names", lambda given: shared_names(given, tmp_path))
    settings = from_file("eu", tmp_path)
    check = dict(checks.checks(Target(settings, (), Client(settings.project))))["names"]
    (finding,) = check("names")
    assert finding.state == MISSING
    assert "network:name" in finding.detail
    assert "Pulumi.dev.yaml" in finding.detail
    write(tmp_path, "dev", {"storage:bucketNam": "x"})
    (finding,) = check("names")
    assert (finding.state, finding.fix) == (OPTIONAL, "tpu plan dev lists them")


def test_a_plan_of_a_layer_that_is_off_names_the_fix(tmp_path: Path, pulumi_cli: FakePulumi) -> None:
    write(tmp_path, "dev", {})
    with pytest.raises(CommandError, match="monitoring is off in dev"):
        plan("dev", tmp_path, ["storage", "monitoring"])
    assert not pulumi_cli.calls

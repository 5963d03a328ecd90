"""Two environments of one folder that name the same resource at Google."""

import re
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.doctor import checks
from infra.doctor.checks import Target
from infra.doctor.finding import MISSING, OPTIONAL
from infra.engine import registry
from infra.engine.before import settings_to_apply
from infra.engine.environments import shared_names
from infra.engine.plan import plan
from infra.engine.settings import from_file
from infra.errors import CommandError, SettingsError
from infra.google.client import Client
from infra.layers.gke.settings import GkeSettings
from infra.layers.network.settings import NetworkSettings
from infra.settings.schema import keys_of
from infra.settings.sources import ROOT
from tests.infra.conftest import FakePulumi
from tests.infra.declared import EVERYTHING, OFF
from tests.infra.recording import BASE, parsed

SOON = (date.today() + timedelta(days=30)).isoformat()
EXCEPTION = {"rule": "PL22", "resource": "*-prod", "reason": "one budget of all projects", "until": SOON}
OTHER_NAMES: dict[str, Any] = {
    "data:diskPrefix": "tokens-eu",
    "storage:bucketName": "my-project-eu",
    "tpu:slices": [{**BASE["tpu:slices"][0], "name": "train-eu"}],
}
SHARED = {"storage:serviceAccountId": "our-hosts", "network:name": "train"}
"""Names that both files write, in place of each environment's own."""


def write(folder: Path, environment: str, changes: dict[str, Any]) -> None:
    config = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    (folder / f"Pulumi.{environment}.yaml").write_text(yaml.safe_dump({"config": config}))


def problems(folder: Path, environment: str = "eu") -> dict[str, str]:
    shared, _ = shared_names(from_file(environment, folder), folder)
    return {problem.path: str(problem) for problem in shared}


def test_a_copied_file_is_refused_by_what_it_names_itself_in_one_message(
    tmp_path: Path, pulumi_cli: FakePulumi
) -> None:
    write(tmp_path, "dev", {})
    write(tmp_path, "eu", {})
    with pytest.raises(SettingsError) as refused:
        plan("eu", tmp_path)
    assert [problem.path for problem in refused.value.problems] == [
        "data:diskPrefix", "storage:bucketName", "tpu:slices[0].name",
    ]  # fmt: skip
    assert all(
        problem.rule.startswith("Pulumi.dev.yaml creates the same resource")
        for problem in refused.value.problems
    )
    assert "write e.g. my-project-checkpoints-eu;" in str(refused.value)
    assert not pulumi_cli.calls


def test_a_file_with_names_of_its_own_sends_one_to_its_copy(tmp_path: Path) -> None:
    write(tmp_path, "eu", OTHER_NAMES)
    write(tmp_path, "asia", OTHER_NAMES)
    own = problems(tmp_path)["storage:bucketName"]
    assert own.endswith("fix: write e.g. my-project-asia into Pulumi.asia.yaml")
    copy = problems(tmp_path, "asia")["storage:bucketName"]
    assert "fix: write e.g. my-project-eu-asia; or, if asia is up already, change Pulumi.eu.yaml" in copy


def test_every_shared_name_is_refused_with_its_setting_and_the_other_file(tmp_path: Path) -> None:
    write(tmp_path, "dev", SHARED)
    write(tmp_path, "eu", SHARED)
    refused = problems(tmp_path)
    assert set(refused) == {"data:diskPrefix", "storage:bucketName", "tpu:slices[0].name", *SHARED}
    assert all("Pulumi.dev.yaml" in text for text in refused.values())


@pytest.mark.parametrize("missing", sorted({**OTHER_NAMES, **SHARED}))
def test_one_shared_name_is_enough(tmp_path: Path, missing: str) -> None:
    shared = {missing: SHARED[missing]} if missing in SHARED else {}
    write(tmp_path, "dev", shared)
    write(tmp_path, "eu", OTHER_NAMES)
    assert problems(tmp_path) == {}
    write(tmp_path, "eu", {**{key: value for key, value in OTHER_NAMES.items() if key != missing}, **shared})
    expected = "tpu:slices[0].name" if missing == "tpu:slices" else missing
    assert set(problems(tmp_path)) == {expected}


def test_default_names_are_an_environments_own_but_in_dev(tmp_path: Path) -> None:
    names = {
        "storage:serviceAccountId": "tpu-training", "network:name": "tpu-training", "gke:clusterName": "tpu",
        "gke:nodeAccountId": "tpu-gke-nodes", "pipeline:name": "tpu-pipeline",
        "builds:accountId": "tpu-builds", "gke:kubernetesAccount": "trainer",
    }  # fmt: skip
    everything = {key: value for layer in OFF.values() for key, value in layer.items()}
    everything["slurm:name"] = "slurm"  # by default slurm-ENV, which has no room for all names

    def values(environment: str) -> dict[str, Any]:
        settings = parsed({**BASE, **everything}, environment)
        return {
            f"{name}:{key}": getattr(settings[kind], item.name)
            for name, kind in registry.section_classes().items()
            if settings.get(kind)
            for key, item in keys_of(kind).items()
            if item.metadata.get("per_environment")
        }

    assert values("dev") == names
    assert values("my_eu") == {path: f"{name}-my-eu" for path, name in names.items()}
    assert parsed({**BASE, "network:name": "ours"}, "eu")[NetworkSettings].name == "ours"


def test_a_long_environments_names_fit(tmp_path: Path) -> None:
    long, other = (parsed({**BASE, **OFF["gke"]}, f"research-of-protein-folding-{i}") for i in "ab")
    accounts = [settings[GkeSettings].node_account_id for settings in (long, other)]
    assert all(re.fullmatch("tpu-gke-nodes-[0-9a-f]{6}", account) for account in accounts)
    assert accounts[0] != accounts[1]


def test_pods_of_two_clusters_never_have_one_identity(tmp_path: Path) -> None:
    """IAM's principal of a pod names project, namespace and account: no cluster."""
    write(tmp_path, "dev", OFF["gke"])
    write(tmp_path, "eu", {**OTHER_NAMES, **OFF["gke"]})
    assert problems(tmp_path) == {}
    write(tmp_path, "eu", {**OTHER_NAMES, **OFF["gke"], "gke:kubernetesAccount": "trainer"})
    assert set(problems(tmp_path)) == {"gke:kubernetesAccount"}
    impersonating = {"gke:kubernetesAccount": "trainer", "gke:workloadAccountId": "pods-eu"}
    write(tmp_path, "eu", {**OTHER_NAMES, **OFF["gke"], **impersonating})
    assert set(problems(tmp_path)) == {"gke:kubernetesAccount"}
    own = {"gke:kubernetesAccount": "trainer", "gke:namespaces": ["training-eu"]}
    write(tmp_path, "eu", {**OTHER_NAMES, **OFF["gke"], **own})
    assert problems(tmp_path) == {}


def test_key_rings_of_one_region_are_compared(tmp_path: Path) -> None:
    write(tmp_path, "dev", {"storage:stateKeyRing": "pulumi"})
    write(tmp_path, "eu", {**OTHER_NAMES, "storage:stateKeyRing": "pulumi"})
    assert set(problems(tmp_path)) == {"storage:stateKeyRing"}
    write(tmp_path, "eu", {
        **OTHER_NAMES, "storage:stateKeyRing": "pulumi", "storage:location": "europe-west4",
        "storage:allowCrossRegion": True,
    })  # fmt: skip
    assert problems(tmp_path) == {}


def test_names_of_another_project_are_other_names_and_a_bucket_is_one_in_the_world(tmp_path: Path) -> None:
    write(tmp_path, "dev", {})
    write(tmp_path, "eu", {"gcp:project": "other-project"})
    assert set(problems(tmp_path)) == {"storage:bucketName"}


def test_a_file_with_problems_hides_no_other(tmp_path: Path) -> None:
    write(tmp_path, "bad", {"storage:bucketNam": "x"})
    write(tmp_path, "dev", SHARED)
    write(tmp_path, "eu", {**OTHER_NAMES, "network:name": "train"})
    assert set(problems(tmp_path)) == {"network:name"}
    assert shared_names(from_file("eu", tmp_path), tmp_path)[1] == ["bad"]


def test_clusters_functions_and_topics_are_compared_too(tmp_path: Path) -> None:
    everything = {key: value for layer in OFF.values() for key, value in layer.items()}
    everything |= {"monitoring:channels": EVERYTHING["monitoring:channels"]}
    names = {"gke:clusterName": "ours", "gke:nodeAccountId": "our-nodes", "pipeline:name": "our-texts"}
    write(tmp_path, "dev", {**everything, **names})
    write(tmp_path, "eu", {**everything, **names, **OTHER_NAMES})
    assert {*names, "pipeline:rawBucketName", "monitoring:channels[1].topic"} <= set(problems(tmp_path))


def test_a_plan_names_all_problems_of_the_files_before_anything_is_asked(
    tmp_path: Path, pulumi_cli: FakePulumi
) -> None:
    write(tmp_path, "dev", {})
    write(tmp_path, "prod", {"policy:exceptions": [{**EXCEPTION, "rule": "PL0"}]})
    with pytest.raises(SettingsError) as refused:
        plan("prod", tmp_path)
    paths = {problem.path for problem in refused.value.problems}
    assert {"storage:bucketName", "monitoring:budgetPerMonth", "policy:exceptions[0].rule"} < paths
    assert "an exception: policy:exceptions: [" in str(refused.value)
    assert not pulumi_cli.calls


def test_rules_of_the_policy_are_named_beside_wrong_settings(tmp_path: Path) -> None:
    write(tmp_path, "prod", {"storage:bucketNam": "x", "policy:enforcement": "advisory"})
    with pytest.raises(SettingsError) as refused:
        settings_to_apply("prod", tmp_path)
    assert {"storage:bucketNam", "policy:enforcement"} == {p.path for p in refused.value.problems}
    write(tmp_path, "prod", {"storage:bucketNam": "x"})
    with pytest.raises(SettingsError) as refused:
        settings_to_apply("prod", tmp_path)
    assert {"storage:bucketNam", "monitoring:budgetPerMonth"} == {p.path for p in refused.value.problems}
    write(tmp_path, "prod", {"monitoring:budgetPerMonth": "much"})
    with pytest.raises(SettingsError) as refused:
        settings_to_apply("prod", tmp_path)
    (problem,) = [p for p in refused.value.problems if p.path == "monitoring:budgetPerMonth"]
    assert "PL22" not in problem.rule, "its value was read as none"


@pytest.mark.parametrize("environment", ["dev", "eu"])
def test_the_shortest_useful_file_is_applied_outside_prod(tmp_path: Path, environment: str) -> None:
    text = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    block = re.search(r"^    config:\n(?:      .*\n)+(?:        .*\n)?", text, re.MULTILINE)
    assert block
    (tmp_path / f"Pulumi.{environment}.yaml").write_text(block[0])
    assert settings_to_apply(environment, tmp_path).environment == environment
    assert "budget" not in block[0]


def test_an_exception_of_all_stacks_stands_for_a_budget_in_prod(tmp_path: Path) -> None:
    write(tmp_path, "prod", {"policy:exceptions": [EXCEPTION]})
    settings_to_apply("prod", tmp_path)
    write(tmp_path, "prod", {"policy:exceptions": [{**EXCEPTION, "resource": "data-prod"}]})
    with pytest.raises(SettingsError, match="PL22"):
        settings_to_apply("prod", tmp_path)


def test_doctor_names_the_setting_and_the_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "dev", SHARED)
    write(tmp_path, "eu", {**OTHER_NAMES, "network:name": "train"})
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


def test_a_plan_names_the_environments_that_it_could_not_compare(
    tmp_path: Path, pulumi_cli: FakePulumi, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "dev", {})
    write(tmp_path, "eu", {**OTHER_NAMES, "tpu:slices": "none"})
    with pytest.raises(CommandError, match="monitoring is off in dev"):
        plan("dev", tmp_path, ["monitoring"])
    assert caplog.messages == ["Pulumi.eu.yaml has problems, so its names aren't compared: tpu plan eu"]


def test_a_plan_compares_names_once(
    tmp_path: Path, pulumi_cli: FakePulumi, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "dev", {})
    write(tmp_path, "eu", OTHER_NAMES)
    read: list[str] = []

    def counted(environment: str, root: Path) -> Any:
        read.append(environment)
        return from_file(environment, root)

    monkeypatch.setattr("infra.engine.environments.from_file", counted)
    with pytest.raises(CommandError, match="monitoring is off in dev"):
        plan("dev", tmp_path, ["monitoring"])
    assert read == ["eu"]


def test_a_plan_of_a_layer_that_is_off_names_the_fix(tmp_path: Path, pulumi_cli: FakePulumi) -> None:
    write(tmp_path, "dev", {})
    with pytest.raises(CommandError, match="monitoring is off in dev"):
        plan("dev", tmp_path, ["storage", "monitoring"])
    assert not pulumi_cli.calls

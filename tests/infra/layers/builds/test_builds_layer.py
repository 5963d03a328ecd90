"""Declarations of the builds layer, and its rendered builds."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from infra.core import guard
from infra.engine.refusals import against
from infra.engine.registry import layers
from infra.engine.settings import parse
from infra.errors import InfraError
from infra.layers.builds import access, render
from infra.layers.queue import manifests
from infra.settings.schema import Settings
from infra.settings.sources import ROOT, as_pulumi_hands_it_over
from rehearsal.cloud.door import discovery
from tests.infra.declared import EVERYTHING, OFF, UP
from tests.infra.layers.queue.test_queue_layer import CLUSTER
from tests.infra.recording import BASE, UPSTREAM, Recording, run

DIGEST = f"@sha256:{'0' * 64}"
IMAGES = {
    "builds:image": f"us-east5-docker.pkg.dev/my-project/tpu-builds/builder{DIGEST}",
    "builds:baseImage": f"docker.io/library/python{DIGEST}",
    "builds:dockerImage": f"gcr.io/cloud-builders/docker{DIGEST}",
}
GIVEN: dict[str, Any] = {**OFF["builds"], **OFF["queue"], **IMAGES}
PREVIEW, APPLY = (
    f"serviceAccount:tpu-{who}@my-project.iam.gserviceaccount.com" for who in ("preview", "apply")
)


def settings(**changes: Any) -> Settings:
    given = {**BASE, **GIVEN, **{f"builds:{key}": value for key, value in changes.items()}}
    return parse("dev", as_pulumi_hands_it_over(given, "f"), "f")


def up(**changes: Any) -> Recording:
    given = {**GIVEN, **{f"builds:{key}": value for key, value in changes.items()}}
    return run("builds", given, preview=False, up={**UPSTREAM, "gke": CLUSTER})


def granted(recording: Recording, member: str) -> dict[str, dict[str, Any]]:
    return {
        resource.inputs["role"]: resource.inputs
        for resource in recording.resources
        if resource.type.endswith("AMMember")
        and resource.inputs.get("member") == member
        and "project" in resource.inputs
    }


def test_the_previewing_account_has_no_permission_that_changes_anything() -> None:
    recording = up()
    (role,) = (
        resource.inputs
        for resource in recording.of("gcp:projects/iAMCustomRole:IAMCustomRole")
        if resource.inputs["roleId"] == "tpu_preview_reads"
    )
    verbs = {item.rpartition(".")[2] for item in role["permissions"]}
    assert verbs <= {"connect", "get", "list", "getIamPolicy"}
    assert "compute.networks.get" in role["permissions"]
    on_project = granted(recording, PREVIEW)
    assert set(on_project) == {"projects/my-project/roles/tpu_preview_reads", "roles/logging.logWriter"}


def test_the_applying_account_grants_what_layers_grant_and_nothing_else() -> None:
    inputs = granted(up(), APPLY)["roles/resourcemanager.projectIamAdmin"]
    assert inputs["condition"]["expression"] == (
        "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly(["
        "'projects/my-project/roles/tpuQueue_dev', 'roles/container.defaultNodeServiceAccount', "
        "'roles/logging.logWriter'])"
    )


@pytest.mark.parametrize("count", [10, 11, 20, 21])
def test_every_role_is_in_exactly_one_condition(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    roles = [f"roles/service{number}.viewer" for number in range(count)]
    monkeypatch.setattr(access, "grantable", lambda _: tuple(roles))
    conditions = [
        re.findall(r"roles/\w+\.viewer", resource.inputs["condition"]["expression"])
        for resource in up().of("gcp:projects/iAMMember:IAMMember")
        if resource.inputs["role"] == "roles/resourcemanager.projectIamAdmin"
        and resource.inputs["member"] == APPLY
    ]
    assert sorted(role for condition in conditions for role in condition) == sorted(roles)
    assert all(0 < len(condition) <= access.MOST_GRANTED for condition in conditions)


def test_the_applying_account_has_no_role_on_all_buckets() -> None:
    recording = up()
    assert "roles/storage.admin" not in granted(recording, APPLY)
    (writes,) = (
        resource.inputs
        for resource in recording.of("gcp:storage/bucketIAMMember:BucketIAMMember")
        if resource.inputs["member"] == APPLY and resource.inputs["role"] == "roles/storage.objectUser"
    )
    place = 'resource.name.startsWith("projects/_/buckets/my-project-pulumi/objects/.pulumi/stacks'
    assert writes["condition"]["expression"] == f'!{place}/storage/") && !{place}/builds/")'


@pytest.mark.parametrize("layer", [layer.name for layer in layers() if layer.name not in access.BOOTSTRAP])
def test_a_layer_declares_every_role_that_it_grants_on_the_project(layer: str) -> None:
    given = {**GIVEN, **OFF.get(layer, {})}
    known = parse("dev", as_pulumi_hands_it_over({**BASE, **given}, "f"), "f")
    recording = run(layer, given, preview=False, up=UP)
    members = recording.of("gcp:projects/iAMMember:IAMMember")
    (declared,) = (item.grants(known) for item in layers() if item.name == layer)
    assert {member.inputs["role"] for member in members} == set(declared)


def wrong(build: dict[str, Any]) -> list[str]:
    result: list[Any] = []
    discovery.document("cloudbuild", "v1").schemas.compile({"$ref": "Build"})(build, "", result)
    return [item.description for item in result]


def test_rendered_builds_are_what_the_api_describes() -> None:
    builds = render.builds(settings())
    assert list(builds) == ["image", "preview", "provision", "destroy"]
    for build in builds.values():
        assert wrong(build) == []
        assert build["options"]["logging"] == "CLOUD_LOGGING_ONLY"
        assert build["timeout"] == "7200s"
        assert all("@sha256:" in step["name"] for step in build["steps"])
        text = str({key: value for key, value in build.items() if key != "substitutions"})
        assert all(f"${key}" in text for key in build.get("substitutions", {}))


@pytest.mark.parametrize("change", [{"stpes": []}, {"timeout": 7200}, {"options": {"logging": "CLOUD"}}])
def test_a_field_that_the_api_lacks_or_of_another_type_is_found(change: dict[str, Any]) -> None:
    assert wrong({**render.builds(settings())["preview"], **change})


def test_layers_come_up_in_their_order_and_down_in_the_other() -> None:
    builds = render.builds(settings(layers=["gke", "network"]))
    assert [step["id"] for step in builds["provision"]["steps"]] == ["plan", "apply-network", "apply-gke"]
    steps = [step["id"] for step in builds["destroy"]["steps"]]
    assert steps == ["check", "destroy-gke", "destroy-network"]
    every = " ".join(word for build in builds.values() for step in build["steps"] for word in step["args"])
    assert " storage" not in every


def test_steps_ask_no_question_and_apply_the_plan_of_their_preview() -> None:
    builds = render.builds(settings(layers=["network"]))
    lines = {kind: [" ".join(step["args"]) for step in build["steps"]] for kind, build in builds.items()}
    assert lines["preview"] == ["plan dev network --save plans"]
    saved = {"location": "gs://my-project-pulumi/plans/$BUILD_ID/", "paths": ["plans/*.json"]}
    assert builds["preview"]["artifacts"] == {"objects": saved}
    assert lines["provision"] == [
        "builds plan dev --from $_PLAN --to plans",
        "infra up dev network --plan plans --skip-preview --yes",
    ]
    assert builds["provision"]["substitutions"] == {"_PLAN": ""}
    assert lines["destroy"] == [
        "infra down dev network --check",
        "infra down dev network --skip-preview --yes",
    ]
    assert {
        step["entrypoint"] for kind, build in builds.items() if kind != "image" for step in build["steps"]
    } == {"tpu"}


def test_the_command_of_a_build_names_its_file_where_the_checkout_goes_and_the_plan() -> None:
    begin = (
        "gcloud builds submit --project=my-project --gcs-source-staging-dir=gs://my-project-pulumi/sources"
    )
    plan = " --substitutions=_PLAN=ID_OF_THE_PREVIEW"
    assert up().exports["submit"] == {
        kind: f"{begin} --config=cloudbuild/dev/{kind}.yaml{plan if kind == 'provision' else ''}"
        for kind in ("image", "preview", "provision", "destroy")
    }


def test_the_image_of_a_tag_stays_the_one_that_was_pushed_first() -> None:
    repository = up().only("gcp:artifactregistry/repository:Repository").inputs
    assert repository["dockerConfig"] == {"immutableTags": True}
    assert (repository["format"], repository["location"]) == ("DOCKER", "us-east5")


def test_who_starts_builds_may_start_them_read_their_logs_and_upload_a_checkout() -> None:
    user = "user:ann@example.com"
    recording = up(previewUsers=[user], applyUsers=[user])
    assert set(granted(recording, user)) == {"roles/cloudbuild.builds.editor", "roles/logging.viewer"}
    (upload,) = (
        resource.inputs
        for resource in recording.of("gcp:storage/bucketIAMMember:BucketIAMMember")
        if resource.inputs["member"] == user
    )
    assert (upload["bucket"], upload["role"]) == ("my-project-pulumi", "roles/storage.objectUser")
    assert upload["condition"]["expression"] == (
        'resource.name.startsWith("projects/_/buckets/my-project-pulumi/objects/sources/")'
    )


@pytest.mark.parametrize("kind", ["preview", "provision"])
def test_each_build_runs_as_its_account(kind: str) -> None:
    who = {"preview": PREVIEW, "provision": APPLY}[kind].partition(":")[2]
    assert render.builds(settings())[kind]["serviceAccount"] == f"projects/my-project/serviceAccounts/{who}"


def test_without_the_builder_image_only_that_one_is_rendered() -> None:
    given = {**BASE, **GIVEN}
    del given["builds:image"]
    assert list(render.builds(parse("dev", as_pulumi_hands_it_over(given, "f"), "f"))) == ["image"]


def test_more_roles_than_a_condition_takes_stand_in_several() -> None:
    given = {**GIVEN, **OFF["pipeline"], "pipeline:runners": ["group:ml@example.com"]}
    recording = run("builds", given, preview=False, up=UP)
    members = [
        resource.inputs
        for resource in recording.of("gcp:projects/iAMMember:IAMMember")
        if resource.inputs["member"] == APPLY and resource.inputs["role"] == access.PROJECT_IAM_ADMIN
    ]
    expressions = [str(member["condition"]["expression"]) for member in members]
    assert len({member["condition"]["title"] for member in members}) == len(members) == 2
    listed = [role for item in expressions for role in item.partition("hasOnly([")[2].split(",")]
    assert [item.count(",") <= access.MOST_GRANTED for item in expressions] == [True, True]
    assert any("dataproc.worker" in role for role in listed)


def test_all_that_stands_against_a_destroy_is_found() -> None:
    bucket = {"urn": "urn:pulumi:dev::gke::gcp:storage/bucket:Bucket::artifacts", "protect": True}
    cluster = {
        "urn": "urn:pulumi:dev::gke::gcp:container/cluster:Cluster::tpu",
        "inputs": {"name": "tpu", "deletionProtection": True},
    }
    free = {"urn": "urn:pulumi:dev::gke::x::y", "inputs": {"deletionProtection": False}}
    result = [(item.path, item.value) for item in against("dev", "gke", [bucket, cluster, free])]
    assert result == [("gke", "protected: artifacts"), ("gke", "deletion protection of tpu")]


@pytest.mark.parametrize("layer", [layer.name for layer in layers()])
def test_whatever_a_layer_makes_beside_its_guards_is_no_guard(
    layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []
    monkeypatch.setattr(guard, "refuse", lambda *held: requests.append(held))
    made = run(layer, EVERYTHING, preview=False, up=UP).resources
    state = [{"urn": f"urn:pulumi:dev::{layer}::{item.type}::{item.name}", "type": item.type,
              "outputs": {**item.inputs, "labels": {}}} for item in made]  # fmt: skip
    assert not list(against("dev", layer, state))
    assert len(requests) == sum(
        "what" in item.inputs for item in made if item.type.startswith("pulumi-python:")
    )


def test_the_builder_image_takes_along_what_the_queue_reads_besides_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = render.write(settings(), tmp_path / "cloudbuild" / "dev")
    assert tmp_path / "cloudbuild/dev/queue/kueue.yaml" in paths
    text = (tmp_path / "cloudbuild/dev/Dockerfile").read_text()
    given = dict(re.findall(r"(TPU_QUEUE_MANIFESTS)=(\S+)", text))
    (check,) = re.findall(r"(?m)^RUN (cd .* && sha256sum .*)$", text)
    for place, local in (("/opt/tpu/tools", ROOT / "tools"), ("/opt/tpu", tmp_path)):
        check = check.replace(place, str(local))
    folder = given["TPU_QUEUE_MANIFESTS"].replace("/opt/tpu", str(tmp_path))
    subprocess.run(["bash", "-c", check], check=True, capture_output=True)
    expected = manifests.files()
    monkeypatch.setenv("TPU_QUEUE_MANIFESTS", folder)
    monkeypatch.setenv("TPU_CACHE", str(tmp_path / "none"))
    assert manifests.files() == expected
    (Path(folder) / "jobset.yaml").write_text("kind: Secret")
    assert subprocess.run(["bash", "-c", check], check=False, capture_output=True).returncode != 0
    with pytest.raises(InfraError, match=r"jobset\.yaml isn't what .*\n    fix: tpu builds render, "):
        manifests.files()


def test_without_the_queue_the_builder_image_takes_nothing_along() -> None:
    (name,) = render.image_files(settings(layers=["gke", "network"]))
    assert name == "Dockerfile"


def test_a_dockerfile_of_other_manifests_is_another_one(tmp_path: Path) -> None:
    for name in ("requirements.txt", "tools/queue/manifests.sha256"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    before = render.image_files(settings())["Dockerfile"]
    assert render.image_files(settings(), tmp_path)["Dockerfile"] == before
    (tmp_path / "tools/queue/manifests.sha256").write_text("others")
    assert render.image_files(settings(), tmp_path)["Dockerfile"] != before

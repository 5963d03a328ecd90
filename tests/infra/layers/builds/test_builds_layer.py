"""Declarations of the builds layer, and its build files."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from infra.core import guard
from infra.engine.refusals import against, in_use
from infra.engine.registry import layers
from infra.errors import InfraError
from infra.layers.builds import access, names, render
from infra.layers.queue import manifests
from infra.settings.schema import Settings
from infra.settings.sources import ROOT
from rehearsal.cloud.door import discovery
from tests.infra.declared import EVERYTHING, OFF, UP
from tests.infra.layers.queue.test_queue_layer import CLUSTER
from tests.infra.recording import BASE, UPSTREAM, Recording, parsed, run

GIVEN: dict[str, Any] = {**OFF["builds"], **OFF["queue"]}
ACCOUNT = "serviceAccount:tpu-builds@my-project.iam.gserviceaccount.com"


def settings(**changes: Any) -> Settings:
    given = {**BASE, **GIVEN, **{f"builds:{key}": value for key, value in changes.items()}}
    return parsed(given)


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


def test_the_applying_account_grants_what_layers_grant_and_nothing_else() -> None:
    inputs = granted(up(), ACCOUNT)["roles/resourcemanager.projectIamAdmin"]
    assert inputs["condition"]["expression"] == (
        "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly(["
        "'projects/my-project/roles/tpuQueue_dev', 'roles/container.defaultNodeServiceAccount', "
        "'roles/logging.logWriter'])"
    )


def test_builds_let_pods_read_the_secrets_that_a_layer_below_names() -> None:
    role = "roles/secretmanager.admin"
    assert role not in {item.name for item in access.applying(settings())}
    given = parsed({**BASE, **GIVEN, "storage:secrets": ["hf-token"]})
    (item,) = (item for item in access.applying(given) if item.name == role)
    assert "secretmanager.secrets.setIamPolicy" in item.permissions
    assert item.why == "grant access to the secrets of programs"


@pytest.mark.parametrize("count", [10, 11, 20, 21])
def test_every_role_is_in_exactly_one_condition(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    roles = [f"roles/service{number}.viewer" for number in range(count)]
    monkeypatch.setattr(access, "grantable", lambda _: tuple(roles))
    conditions = [
        re.findall(r"roles/\w+\.viewer", resource.inputs["condition"]["expression"])
        for resource in up().of("gcp:projects/iAMMember:IAMMember")
        if resource.inputs["role"] == "roles/resourcemanager.projectIamAdmin"
        and resource.inputs["member"] == ACCOUNT
    ]
    assert sorted(role for condition in conditions for role in condition) == sorted(roles)
    assert all(0 < len(condition) <= access.MOST_GRANTED for condition in conditions)


def test_the_applying_account_has_no_role_on_all_buckets() -> None:
    recording = up()
    assert "roles/storage.admin" not in granted(recording, ACCOUNT)
    (writes,) = (
        resource.inputs
        for resource in recording.of("gcp:storage/bucketIAMMember:BucketIAMMember")
        if resource.inputs["member"] == ACCOUNT and resource.inputs["role"] == "roles/storage.objectUser"
    )
    place = 'resource.name.startsWith("projects/_/buckets/my-project-pulumi/objects/.pulumi/stacks'
    assert writes["condition"]["expression"] == f'!{place}/storage/") && !{place}/builds/")'


@pytest.mark.parametrize("layer", [layer.name for layer in layers() if layer.name not in access.BOOTSTRAP])
def test_a_layer_declares_every_role_that_it_grants_on_the_project(layer: str) -> None:
    given = {**GIVEN, **OFF.get(layer, {})}
    known = parsed({**BASE, **given})
    recording = run(layer, given, preview=False, up=UP)
    members = recording.of("gcp:projects/iAMMember:IAMMember")
    (declared,) = (item.grants(known) for item in layers() if item.name == layer)
    assert {member.inputs["role"] for member in members} == set(declared)


def wrong(build: dict[str, Any]) -> list[str]:
    result: list[Any] = []
    discovery.document("cloudbuild", "v1").schemas.compile({"$ref": "Build"})(build, "", result)
    return [item.description for item in result]


@pytest.mark.parametrize("kind", names.KINDS)
def test_builds_are_what_the_api_describes(kind: str) -> None:
    build = render.build(settings(), kind)
    assert wrong(build) == []
    assert build["options"]["logging"] == "CLOUD_LOGGING_ONLY"
    assert build["timeout"] == "7200s"
    assert build["serviceAccount"] == f"projects/my-project/serviceAccounts/{ACCOUNT.partition(':')[2]}"
    assert all("@sha256:" in step["name"] for step in build["steps"])


@pytest.mark.parametrize("change", [{"stpes": []}, {"timeout": 7200}, {"options": {"logging": "CLOUD"}}])
def test_a_field_that_the_api_lacks_or_of_another_type_is_found(change: dict[str, Any]) -> None:
    assert wrong({**render.build(settings(), "provision"), **change})


@pytest.mark.parametrize(("kind", "lines"), [
    ("provision", {
        "plan": "plan dev network gke --save plans",
        "apply-network": "infra up dev network --plan plans --skip-preview --yes",
        "apply-gke": "infra up dev gke --plan plans --skip-preview --yes",
    }),
    ("destroy", {
        "check": "infra down dev network gke --check",
        "destroy-gke": "infra down dev gke --skip-preview --yes",
        "destroy-network": "infra down dev network --skip-preview --yes",
    }),
])  # fmt: skip
def test_layers_come_up_in_their_order_and_down_in_the_other_without_a_question(
    kind: str, lines: dict[str, str]
) -> None:
    steps = render.build(settings(layers=["gke", "network"]), kind)["steps"]
    assert [step["id"] for step in steps] == list(lines)
    assert [" ".join(step["args"]) for step in steps] == [f"tools/build-step.sh {x}" for x in lines.values()]
    assert {step["entrypoint"] for step in steps} == {"bash"}


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_step_sets_up_an_image_without_tpu_once(tmp_path: Path) -> None:
    """Set-up is replaced by a script that makes a `tpu`; an image that has one isn't set up."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / render.STEP, tmp_path / "tools")
    program(tmp_path / "tools/setup.sh", 'echo set up "$@"; mkdir -p .venv/bin; cp tpu .venv/bin')
    program(tmp_path / "tpu", 'echo tpu "$PULUMI_HOME" "$@"')
    program(tmp_path / "image/tpu", 'echo of the image "$PULUMI_HOME" "$@"')

    def step(path: str = "/usr/bin:/bin") -> list[str]:
        command = ["bash", render.STEP, "plan", "dev"]
        return subprocess.check_output(command, cwd=tmp_path, env={"PATH": path}, text=True).splitlines()

    runs = f"tpu {tmp_path}/.tpu/pulumi plan dev"
    assert step() == ["set up python pulumi plugins", runs]
    assert step() == [runs]
    assert step(f"{tmp_path}/image:/usr/bin:/bin") == ["of the image  plan dev"]


def test_the_command_of_a_build_names_its_file_and_where_the_checkout_goes() -> None:
    begin = (
        "gcloud builds submit --project=my-project --gcs-source-staging-dir=gs://my-project-pulumi/sources"
    )
    assert up().exports["submit"] == {
        kind: f"{begin} --config=cloudbuild/dev/{kind}.yaml" for kind in ("provision", "destroy")
    }


def test_who_starts_builds_may_start_them_read_their_logs_and_upload_a_checkout() -> None:
    user = "user:ann@example.com"
    recording = up(users=[user])
    assert set(granted(recording, user)) == {
        "roles/cloudbuild.builds.editor",
        "roles/logging.viewer",
        "roles/serviceusage.serviceUsageConsumer",
    }
    bucket, upload = (
        resource.inputs
        for resource in recording.of("gcp:storage/bucketIAMMember:BucketIAMMember")
        if resource.inputs["member"] == user
    )
    # gcloud gets the bucket before it uploads, which no condition on objects allows.
    assert (bucket["bucket"], bucket["role"]) == ("my-project-pulumi", "roles/storage.legacyBucketReader")
    assert "condition" not in bucket
    assert (upload["bucket"], upload["role"]) == ("my-project-pulumi", "roles/storage.objectUser")
    assert upload["condition"]["expression"] == (
        'resource.name.startsWith("projects/_/buckets/my-project-pulumi/objects/sources/")'
    )


def test_more_roles_than_a_condition_takes_stand_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_GRANTED", 5)
    given = {**GIVEN, **OFF["pipeline"], "pipeline:runners": ["group:ml@example.com"]}
    recording = run("builds", given, preview=False, up=UP)
    members = [
        resource.inputs
        for resource in recording.of("gcp:projects/iAMMember:IAMMember")
        if resource.inputs["member"] == ACCOUNT and resource.inputs["role"] == access.PROJECT_IAM_ADMIN
    ]
    expressions = [str(member["condition"]["expression"]) for member in members]
    assert len({member["condition"]["title"] for member in members}) == len(members) > 1
    listed = [role for item in expressions for role in item.partition("hasOnly([")[2].split(",")]
    assert all(item.count(",") <= access.MOST_GRANTED for item in expressions)
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
    (fix,) = [item.fix for item in against("eu", "gke", [cluster])]
    assert fix.startswith("gke:deletionProtection: false and an item {rule: K09, resource: tpu, ")


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
    assert not list(in_use({layer: state}))
    assert len(requests) == sum(
        item.inputs.get("what") in guard.KINDS for item in made if item.type.startswith("pulumi-python:")
    )


def test_a_build_reads_the_queues_manifests_where_the_checkout_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = manifests.files()
    (tmp_path / "tools/queue").mkdir(parents=True)
    shutil.copy(ROOT / manifests.HASHES, tmp_path / manifests.HASHES)
    paths = render.write(settings(), tmp_path)
    assert tmp_path / "cloudbuild/dev/queue/kueue.yaml" in paths
    variables = dict(item.split("=") for item in render.build(settings(), "destroy")["options"]["env"])
    monkeypatch.setattr(manifests, "ROOT", tmp_path)
    monkeypatch.setenv("TPU_QUEUE_MANIFESTS", variables["TPU_QUEUE_MANIFESTS"])
    assert manifests.files() == expected
    (tmp_path / "cloudbuild/dev/queue/jobset.yaml").write_text("kind: Secret")
    with pytest.raises(InfraError, match=r"jobset\.yaml isn't what .*\n    fix: tpu builds render ENV, "):
        manifests.files()


def test_without_the_queue_builds_take_nothing_along(tmp_path: Path) -> None:
    chosen = settings(layers=["gke", "network"])
    assert [path.name for path in render.write(chosen, tmp_path)] == ["provision.yaml", "destroy.yaml"]
    assert "TPU_QUEUE_MANIFESTS" not in str(render.build(chosen, "provision"))

"""The snapshot of the data, and the roles of whoever brings layers up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.doctor import first
from infra.doctor.finding import Finding
from infra.doctor.report import with_names
from infra.engine.roles import PLATFORM, roles
from infra.engine.settings import parse
from infra.google.client import Client
from infra.settings.schema import Settings
from tests.emulated import EVERY_API, OWNER, Emulated, Session
from tests.infra.declared import OFF
from tests.infra.recording import BASE

PROJECT = BASE["gcp:project"]
ADA = "ada@example.com"
NEEDED = sorted({role.name for role in roles(PLATFORM, None) if role.on == "project"})


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Emulated]:
    cloud = Emulated(tmp_path, PROJECT, enabled_apis=EVERY_API)
    yield cloud
    cloud.close()


def settings(**changes: Any) -> Settings:
    given = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    return parse("dev", texts, "file")


def looked(
    check: Callable[[Client, Settings, str], Iterator[Finding]],
    cloud: Emulated,
    meant: Settings,
    who: str = OWNER,
) -> Finding:
    (finding,) = check(Client(PROJECT, Session(cloud, who)), meant, "it")
    return finding


def test_a_snapshot_that_is_missing_is_named_with_the_command(cloud: Emulated) -> None:
    finding = looked(first.snapshot, cloud, settings())
    assert finding.state == "missing"
    assert f"snapshots create training-data --project={PROJECT}" in finding.fix
    name = f"projects/{PROJECT}/global/snapshots/training-data"
    cloud.world.directory[name] = {"name": "training-data"}
    assert looked(first.snapshot, cloud, settings()).state == "ok"


def test_a_login_that_may_not_look_for_the_snapshot_needs_none(cloud: Emulated) -> None:
    finding = looked(first.snapshot, cloud, settings(), ADA)
    assert (finding.state, "can't look" in finding.detail) == ("optional", True)


def test_without_data_disks_no_snapshot_is_asked_for(cloud: Emulated) -> None:
    none = {key: None for key in BASE if key.startswith("data:")}
    assert looked(first.snapshot, cloud, settings(**none)).state == "ok"


def test_roles_that_a_login_lacks_for_updates_are_optional_and_named(cloud: Emulated) -> None:
    assert looked(first.updates, cloud, settings()).state == "ok"
    users = {"storage:serviceAccountUsers": [f"user:{ADA}"]}
    finding = looked(first.updates, cloud, settings(**users), ADA)
    assert finding.state == "optional"
    assert "roles/storage.admin" in finding.detail
    assert "tpu infra roles dev" in finding.fix
    policy = cloud.iam.policy(f"projects/{PROJECT}")
    members = [f"user:{ADA}"]
    granted = [{"role": role, "members": members} for role in NEEDED if role != "roles/storage.admin"]
    cloud.iam.set_policy(f"projects/{PROJECT}", {**policy, "bindings": [*policy["bindings"], *granted]})
    finding = looked(first.updates, cloud, settings(**users), ADA)
    assert finding.detail.endswith("of roles/storage.admin")


ACTED_AS = {
    "storage:serviceAccountUsers": "storage", "gke:nodeAccountUsers": "gke",
    "pipeline:accountUsers": "pipeline", "slurm:accountUsers": "slurm",
}  # fmt: skip


def test_a_login_learns_before_an_account_is_there_which_setting_lets_it_act_as_it(cloud: Emulated) -> None:
    policy = cloud.iam.policy(f"projects/{PROJECT}")
    granted = [{"role": role, "members": [f"user:{ADA}"]} for role in NEEDED]
    cloud.iam.set_policy(f"projects/{PROJECT}", {**policy, "bindings": [*policy["bindings"], *granted]})
    google = Client(PROJECT, Session(cloud, ADA))

    def fixes(users: list[str]) -> dict[str, str]:
        meant = settings(
            **{**OFF["gke"], **OFF["pipeline"], **OFF["slurm"], **dict.fromkeys(ACTED_AS, users)}
        )
        looked = list(first.updates(google, meant, "it"))
        return {finding.fix: finding.state for finding in looked if finding.fix}

    lacking = {f"user:{ADA} in {key}, then tpu up dev {layer}" for key, layer in ACTED_AS.items()}
    assert fixes([]) == dict.fromkeys(lacking, "optional")
    assert set(fixes(["group:sre@example.com"])) == lacking, "of a group nobody knows who is in it"
    assert not fixes([f"user:{ADA}"])
    looked = list(first.updates(Client(PROJECT, Session(cloud, OWNER)), settings(**OFF["gke"]), "it"))
    assert [finding.state for finding in looked] == ["ok"], "an owner acts as every account"


def test_with_the_api_of_accounts_off_the_roles_that_a_login_lacks_are_still_listed(tmp_path: Path) -> None:
    cloud = Emulated(tmp_path, PROJECT, enabled_apis=[*{*EVERY_API} - {"iam.googleapis.com"}])
    try:
        looked = list(first.updates(Client(PROJECT, Session(cloud, ADA)), settings(), "it"))
    finally:
        cloud.close()
    assert {finding.state for finding in looked} == {"optional"}
    details = [finding.detail for finding in looked]
    assert "roles/storage.admin" in details[-1]
    assert details[0] == "this login can't bring tpu up: it may not act as the hosts' account"


def test_fixes_name_the_login_the_environment_and_its_project(cloud: Emulated) -> None:
    google = Client(PROJECT, Session(cloud, ADA), sleep=lambda _: None)
    fix = "user:YOU: tpu up ENV storage --project=PROJECT; --project=PROJECTS"
    (named,) = with_names([Finding("it", "missing", "", fix)], settings(), google)
    assert named.fix == f"user:{ADA}: tpu up dev storage --project={PROJECT}; --project=PROJECTS"
    cloud.cloud.faults.add({"match": {"host": "*"}, "what": {"status": 503}})
    (unknown,) = with_names([Finding("it", "missing", "", "user:YOU")], settings(), google)
    assert unknown.fix == "user:YOU"

"""Roles that layers ask for hold what they use; custom roles hold what a project can grant."""

import json

import pytest

from google_facts import roles
from infra.engine import registry
from infra.engine.roles import ACCOUNTS
from infra.engine.roles import roles as of_account
from infra.engine.settings import parse
from infra.layers.pipeline import access
from infra.layers.pipeline.settings import SMALL_ROLE, WORKER
from tests.infra.declared import EVERYTHING, declared
from tests.infra.recording import BASE

_CUSTOM, _GRANTS = "gcp:projects/iAMCustomRole:IAMCustomRole", "gcp:projects/iAMMember:IAMMember"


@pytest.mark.parametrize("account", ACCOUNTS)
def test_a_role_that_is_asked_for_holds_what_is_used_of_it(account: str) -> None:
    lacking = {
        (role.name, permission)
        for role in of_account(account)
        for permission in role.permissions
        if permission not in (roles.of_role(role.name) or ())
    }
    assert lacking == set()


@pytest.mark.parametrize("spark_role", [WORKER, SMALL_ROLE])
def test_a_role_of_the_pipelines_accounts_holds_what_they_use(spark_role: str) -> None:
    given = {**BASE, **EVERYTHING, "pipeline:sparkRole": spark_role}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    settings = parse("dev", texts, "file")
    lacking = {
        (grant.role, permission)
        for grant in (*access.grants(settings), *access.of_people(settings))
        for permission in grant.permissions
        if grant.role and permission not in (roles.of_role(grant.role) or ())
    }
    assert lacking == set()


def test_what_is_granted_on_projects_can_be_granted_there() -> None:
    above = {
        (layer.name, role.name, permission)
        for layer in registry.layers()
        for role in layer.roles
        for permission in role.permissions
        if role.on != "billing account" and roles.above_projects(permission)
    }
    assert above == set()


@pytest.mark.parametrize("layer", [layer.name for layer in registry.layers()])
def test_custom_roles_hold_what_a_project_can_grant_and_predefined_ones_are_there(layer: str) -> None:
    recording = declared(layer)
    held = {name for role in recording.of(_CUSTOM) for name in role.inputs["permissions"]}
    assert {name for name in held if not roles.is_permission(name) or roles.above_projects(name)} == set()
    granted = {str(item.inputs["role"]) for item in recording.resources if "role" in item.inputs}
    assert {name for name in granted if name.startswith("roles/") and not roles.exists(name)} == set()


@pytest.mark.parametrize("permission", ["billing.budgets.get", "resourcemanager.organizations.get"])
def test_no_project_grants_what_is_above_it(permission: str) -> None:
    assert roles.above_projects(permission)
    assert not roles.above_projects("tpu.nodes.get")

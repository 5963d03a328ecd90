"""The controller as its own account, with what the storage layer grants it and no more: the emulated API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import requests

from fleet.unit import unit
from infra.google.role import ON_NODES
from infra.layers.tpu import startup
from infra.layers.tpu.published import unpublished
from infra.settings.sources import ROOT
from infra.slices.names import bundle_blob
from infra.slices.nodes import nodes
from tests.fleet.asking import Asking
from tests.fleet.conftest import ZONES
from tests.fleet.lab import ACCOUNT, BUCKET, CONTROLLERS, FLEET, PROJECT, Lab, P, settings
from tests.infra.recording import run

USER, EMAIL = "sre@example.com", f"tpu-fleet@{PROJECT}.iam.gserviceaccount.com"
ACCOUNTS, ROLE = f"{P}/serviceAccounts", f"{P}/roles/tpu_fleet"
OTHER, STEPS = f"other-hosts@{PROJECT}.iam.gserviceaccount.com", f"{BUCKET}-steps"
IAM, STORAGE, CHECKPOINT = "iam.googleapis.com/v1", "storage.googleapis.com", "runs/r/checkpoints/10/state"
UPLOAD, OBJECTS = f"{STORAGE}/upload/storage/v1/b/{BUCKET}/o", f"{STORAGE}/storage/v1/b/{BUCKET}/o"
TOKEN = "iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{}:generateAccessToken"
SCOPE = {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}
NODES = f"tpu.googleapis.com/v2/{P}/locations/{ZONES[0]}/nodes"
ONE = {**FLEET, "zones": [ZONES[0]], "count": 1}
DRY = {"code": "RESOURCE_EXHAUSTED", "message": "There is no more capacity in the zone"}


@pytest.fixture(name="lab", scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"), apis=("iam.googleapis.com",))
    with lab.entered():
        declare(lab)
        yield lab
    lab.close()


def declare(lab: Lab) -> None:
    """Declare the storage layer's grants for the controller, and resources that it mustn't reach."""
    recording = run("storage", {
        "gcp:project": PROJECT, "storage:bucketName": BUCKET, "storage:controllerAccountId": "tpu-fleet",
        "storage:controllerAccountUsers": [f"user:{USER}"],
    })  # fmt: skip
    for account in ("tpu-fleet", "other-hosts"):
        lab.request("POST", f"{IAM}/{ACCOUNTS}", {"accountId": account})
    role = recording.only("gcp:projects/iAMCustomRole:IAMCustomRole").inputs
    content = {"title": role["title"], "includedPermissions": role["permissions"]}
    lab.request("POST", f"{IAM}/{P}/roles", {"roleId": role["roleId"], "role": content})
    for resource in recording.resources:
        if resource.type.startswith("gcp:") and resource.type.endswith("IAMMember"):
            grant(lab, resource.inputs)
    lab.request("POST", f"{STORAGE}/storage/v1/b", {"name": STEPS}, project=PROJECT)
    state = f"projects/_/buckets/{CONTROLLERS}/objects/x"
    lab.until(lambda: lab.cloud.iam.allowed(EMAIL, "storage.objects.create", state))
    lab.until(lambda: may(lab, "tpu.nodes.get"))


def grant(lab: Lab, inputs: dict[str, Any]) -> None:
    """Add a member to a policy, if it is the controller's account or on it."""
    member, account = inputs["member"], inputs.get("serviceAccountId")
    if member != f"serviceAccount:{EMAIL}" and account != f"{ACCOUNTS}/{EMAIL}":
        return
    bucket = f"projects/_/buckets/{inputs['bucket']}" if "bucket" in inputs else ""
    resource = account or bucket or f"projects/{inputs['project']}"
    policy = lab.cloud.iam.policy(resource)
    condition = {"condition": inputs["condition"]} if "condition" in inputs else {}
    policy["bindings"].append({"role": inputs["role"], "members": [member], **condition})
    lab.cloud.iam.set_policy(resource, policy | {"version": 3})


def may(lab: Lab, permission: str) -> bool:
    """Return whether the account has a permission on the project by now."""
    return lab.cloud.iam.allowed(EMAIL, permission, P)


def as_account(
    lab: Lab, method: str, path: str, body: Any = None, who: str = EMAIL, **query: str
) -> requests.Response:
    """A request of an account's."""
    data = body if isinstance(body, bytes) else None
    send = {"Authorization": f"Bearer {lab.cloud.iam.mint(who).value}"}
    return requests.request(
        method, f"{lab.url}/{path}", params=query, data=data, json=None if data else body, headers=send
    )


def controllers(lab: Lab) -> Asking:
    """The controller's requests, by the login of somebody who may impersonate its account."""
    answer = as_account(lab, "POST", TOKEN.format(EMAIL), SCOPE, who=USER)
    assert answer.ok, answer.text
    with mock.patch.dict(os.environ, {"GOOGLE_OAUTH_ACCESS_TOKEN": answer.json()["accessToken"]}):
        asking = lab.asking()
        assert asking._session, "it logs in with its first request, by the variable of then"
        return asking


def refused(lab: Lab, since: int) -> list[str]:
    """Return the messages of the account's refused requests."""
    return [
        item["message"]
        for item in lab.requested("", since)
        if item["status"] == 403 and item["principal"] == EMAIL
    ]


def lives(lab: Lab, since: int) -> bool:
    """A member is created, brought back, updated, replaced for its boot, and made after a stock-out.

    False where the account was refused something first.
    """

    def stopped() -> bool:
        return bool(refused(lab, since))

    def ready_again(number: str) -> bool:
        existing = lab.node(name) or {}
        return existing.get("id") != number and lab.all_ready([name], controller)

    asking = controllers(lab)
    fleet = lab.fleet(settings(ONE), asking)
    name, controller = fleet.members[0].name, lab.controller(fleet)
    lab.keep(controller, lambda _: stopped() or ready_again(""))
    if stopped():
        return False
    number = (lab.node(name) or {})["id"]
    lab.preempt(name)
    lab.keep(controller, lambda _: stopped() or ready_again(number))
    if stopped():
        return False

    lab.begin_anew()
    lab.create(fleet.members[0])
    number, fleet = (
        (lab.node(name) or {})["id"],
        lab.fleet(settings({**ONE, "run": "train tiny.toml"}), asking),
    )
    controller, spec = lab.controller(fleet), fleet.spec(fleet.members[0])
    lab.keep(
        controller,
        lambda _: stopped() or ((lab.node(name) or {})["labels"]["spec"] == spec and not controller.busy),
    )
    if stopped():
        return False
    lab.says_that_its_boot_failed(name)
    lab.keep(controller, lambda _: stopped() or ready_again(number))
    if stopped():
        return False

    lab.begin_anew()
    controller = lab.controller(fleet)
    create = {"method": "tpu.*.nodes.create", "path": f"/{ZONES[0]}/"}
    rule = lab.cloud.faults.add({"match": create, "what": {"operation_error": DRY}})
    lab.keep(
        controller, lambda observation: stopped() or any("stock-out" in event for event in observation.events)
    )
    assert lab.cloud.faults.lift(rule), "the zone had chips"
    if stopped():
        return False
    lab.keep(controller, lambda _: stopped() or ready_again(""))
    return not stopped()


def test_the_account_does_all_that_a_fleet_needs(lab: Lab) -> None:
    since = lab.cloud.requests.since(0)["next"]
    assert lives(lab, since), refused(lab, since)
    mine = [item for item in lab.requested("", since) if item["principal"] == EMAIL]
    requested = {item["method_id"].removeprefix("tpu.projects.locations.") for item in mine}
    assert requested == {
        "nodes.create", "nodes.delete", "nodes.get", "nodes.getGuestAttributes", "nodes.list", "nodes.patch",
        "operations.get", "storage.objects.get", "storage.objects.insert", "storage.objects.list",
    }  # fmt: skip
    assert not refused(lab, since)
    google = controllers(lab)
    script = bundle_blob(startup.script_sha256())
    lab.request("POST", UPLOAD, b"{}", uploadType="media", name=script)
    assert (
        unpublished(settings(ONE), {node.bundle for node in nodes(settings(ONE))}, BUCKET, google.is_there)
        is None
    )
    assert google.observe([ZONES[0]]).failure is None
    lab.begin_anew()


@pytest.mark.parametrize("permission", ON_NODES)
def test_each_permission_of_the_role_is_needed(lab: Lab, permission: str) -> None:
    since = lab.cloud.requests.since(0)["next"]
    others = [on_node for on_node in ON_NODES if on_node != permission]
    lab.request("PATCH", f"{IAM}/{ROLE}", {"includedPermissions": others})
    lab.until(lambda: not may(lab, permission))
    try:
        assert not lives(lab, since)
        assert any(f"'{permission}' denied" in item for item in refused(lab, since)), refused(lab, since)
    finally:
        lab.request("PATCH", f"{IAM}/{ROLE}", {"includedPermissions": list(ON_NODES)})
        lab.until(lambda: may(lab, permission))
        lab.begin_anew()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"{OBJECTS}/{CHECKPOINT.replace('/', '%2F')}?alt=media", None),
        ("GET", f"{OBJECTS}/data%2Ftokens.bin", None),
        ("GET", f"{OBJECTS}/boot%2Fn%2Fworker-0.json", None),
        ("GET", f"{OBJECTS}/bundles%2Fothers%2Fabc", None),
        ("GET", f"{STORAGE}/storage/v1/b/{STEPS}/o/{CHECKPOINT.replace('/', '%2F')}", None),
        ("GET", f"{STORAGE}/storage/v1/b/{STEPS}/o?prefix=boot/", None),
        *(("GET", f"{OBJECTS}{query}", None) for query in ("", "?prefix=", "?prefix=boo", "?prefix=runs/")),
        *(
            ("POST", f"{UPLOAD}?uploadType=media&name={name}", b"{}")
            for name in ("boot/n/worker-0.json", "heartbeats/n/worker-0", "bundles/manifests/ab", CHECKPOINT)
        ),
        ("DELETE", f"{OBJECTS}/{CHECKPOINT.replace('/', '%2F')}", None),
        ("PATCH", f"{OBJECTS}/boot%2Fn%2Fworker-0.json", {"metadata": {"state": "failed"}}),
        ("GET", f"{STORAGE}/storage/v1/b/{BUCKET}/iam", None),
        ("PUT", f"{STORAGE}/storage/v1/b/{BUCKET}/iam", {"bindings": []}),
        ("PUT", f"{STORAGE}/storage/v1/b/{CONTROLLERS}/iam", {"bindings": []}),
        ("DELETE", f"{STORAGE}/storage/v1/b/{CONTROLLERS}", None),
        ("POST", f"cloudresourcemanager.googleapis.com/v1/{P}:setIamPolicy", {"policy": {"bindings": []}}),
        ("POST", f"{IAM}/{ACCOUNTS}/{EMAIL}:setIamPolicy", {"policy": {"bindings": []}}),
        ("POST", f"{IAM}/{ACCOUNTS}/{ACCOUNT}:setIamPolicy", {"policy": {"bindings": []}}),
        ("POST", TOKEN.format(ACCOUNT), SCOPE),
        ("PATCH", f"{IAM}/{ROLE}", {"includedPermissions": ["tpu.nodes.create", "compute.disks.create"]}),
        ("POST", f"{IAM}/{P}/roles", {"roleId": "mine", "role": {"title": "mine"}}),
        ("POST", f"{IAM}/{ACCOUNTS}", {"accountId": "another-one"}),
        (
            "POST", f"compute.googleapis.com/compute/v1/{P}/zones/us-east5-b/disks",
            {"name": "d", "sizeGb": "10"},
        ),
        ("POST", f"{NODES}/n:stop", {}),
    ],
)  # fmt: skip
def test_the_account_is_refused_everything_else(lab: Lab, method: str, path: str, body: Any) -> None:
    for bucket in (BUCKET, STEPS):
        for name in (CHECKPOINT, "boot/n/worker-0.json", "data/tokens.bin"):
            upload = f"{STORAGE}/upload/storage/v1/b/{bucket}/o"
            lab.request("POST", upload, b"{}", uploadType="media", name=name)
    answer = as_account(lab, method, path, body)
    assert answer.status_code == 403, answer.text
    assert answer.json()["error"]["status"] == "PERMISSION_DENIED", answer.text
    assert lab.request("GET", f"{OBJECTS}/{CHECKPOINT.replace('/', '%2F')}")["name"] == CHECKPOINT


def test_it_starts_hosts_as_their_account_and_as_no_other(lab: Lab) -> None:
    fleet = lab.fleet(settings(ONE))
    body = dict(fleet.body(fleet.members[0]))
    for email in (OTHER, EMAIL):
        body["serviceAccount"] = {**body["serviceAccount"], "email": email}
        answer = as_account(lab, "POST", NODES, body, nodeId="n")
        assert answer.status_code == 403, answer.text
        assert "'iam.serviceAccounts.actAs' denied" in answer.text
    assert not lab.everyone()


@pytest.mark.parametrize("who", [ACCOUNT, OTHER, "somebody@example.com"])
def test_only_who_is_listed_becomes_the_account(lab: Lab, who: str) -> None:
    answer = as_account(lab, "POST", TOKEN.format(EMAIL), SCOPE, who=who)
    assert answer.status_code == 403
    assert "'iam.serviceAccounts.getAccessToken' denied" in answer.text


def test_the_unit_says_whom_it_runs_as() -> None:
    output = unit("dev", "1a2b3c4", EMAIL, ROOT, "/venv/bin/python")
    assert f"--impersonate-service-account={EMAIL}" in output
    assert f"--service-account={EMAIL} --scopes=cloud-platform" in output
    assert "storage:controllerAccountId" not in output
    assert "storage:controllerAccountId" in unit("dev", "1a2b3c4", "", ROOT, "/venv/bin/python")
    assert [line for line in output.splitlines() if line[:1] not in "#[" and "=" not in line] == []

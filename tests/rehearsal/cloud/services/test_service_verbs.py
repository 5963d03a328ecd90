"""Methods beyond the plain ones, by official clients; and enums by their numbers."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import proto
import pytest
from google.api_core.exceptions import BadRequest, GoogleAPICallError
from google.cloud import secretmanager_v1, tpu_v2
from official import OWNER, Discovered, Gapic, RefusedError, description
from row import EMAIL, IMAGE, L, P
from rows import ROWS
from services_front import Services

from rehearsal.cloud.door.enums import NUMBERS
from tests.limits import HANG_S


def client_of(services: Services, method: str) -> Any:
    return next(row for row in ROWS if row.method == method).make(services, OWNER)


def body_of(method: str) -> Any:
    return next(row for row in ROWS if row.method == method).body


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_queued_resource_makes_its_node_and_takes_it_along(services: Services) -> None:
    method = "tpu.projects.locations.queuedResources"
    queued, client = client_of(services, method), client_of(services, method)._client
    State = tpu_v2.QueuedResourceState.State
    parent = f"{P}/locations/us-east5-b"
    body = {
        "tpu": {"node_spec": [{**body_of(method)["tpu"]["node_spec"][0], "node_id": "queued"}]},
        "spot": {},
    }
    with services.stopped_clock():
        sent = {"parent": parent, "queued_resource_id": "asks", "queued_resource": body}
        started, name = client.create_queued_resource(sent), f"{parent}/queuedResources/asks"
        assert client.get_queued_resource(name=name).state.state == State.CREATING
    assert started.result(timeout=HANG_S).name == name
    until(lambda: client.get_queued_resource(name=name).state.state == State.ACTIVE)
    node = client.get_node(name=f"{parent}/nodes/queued")
    assert (node.state.name, node.queued_resource, node.scheduling_config.spot) == ("READY", name, True)
    queued.extra = None
    with pytest.raises(RefusedError, match="has nodes"):
        queued.delete(name)
    services.preempt("queued")
    until(lambda: client.get_queued_resource(name=name).state.state == State.SUSPENDED)
    queued.extra = {"force": True}
    queued.delete(name)
    with pytest.raises(GoogleAPICallError, match="not found"):
        client.get_node(name=node.name)


def test_a_node_is_made_changed_stopped_and_deleted_by_its_client(services: Services) -> None:
    method = "tpu.projects.locations.queuedResources"
    driven = client_of(services, method)
    client, run, parent = driven._client, driven._run, f"{P}/locations/us-east5-b"
    body = body_of(method)["tpu"]["node_spec"][0]["node"]
    node = run(client.create_node, {"parent": parent, "node_id": "driven", "node": body})
    assert (node.state.name, node.name) == ("READY", f"{parent}/nodes/driven")
    assert node.name in [item.name for item in client.list_nodes(parent=parent)]
    change = {"node": {"name": node.name, "labels": {"a": "b"}}, "update_mask": {"paths": ["labels"]}}
    assert run(client.update_node, change).labels == {"a": "b"}
    assert run(client.stop_node, {"name": node.name}).state.name == "STOPPED"
    assert run(client.start_node, {"name": node.name}).state.name == "READY"
    run(client.delete_node, {"name": node.name})
    with pytest.raises(RefusedError, match="not found"):
        run(client.get_node, {"name": node.name})


def test_a_request_for_a_node_whose_name_was_taken_meanwhile_fails(services: Services) -> None:
    method = "tpu.projects.locations.queuedResources"
    queued = client_of(services, method)
    parent = f"{P}/locations/us-east5-b"
    spec = {**body_of(method)["tpu"]["node_spec"][0], "node_id": "taken"}
    names = [f"{parent}/queuedResources/wants-{n}" for n in range(2)]
    with services.stopped_clock():
        for name in names:
            queued._client.create_queued_resource(
                parent=parent,
                queued_resource_id=name.rpartition("/")[2],
                queued_resource={"tpu": {"node_spec": [spec]}},
            )
    until(lambda: {queued.get(name)["state"]["state"] for name in names} == {4, 6})  # FAILED, ACTIVE
    for name in names:
        queued.delete(name)


def test_a_request_for_nodes_of_another_zone_is_refused(services: Services) -> None:
    method = "tpu.projects.locations.queuedResources"
    (spec,) = body_of(method)["tpu"]["node_spec"]
    elsewhere = {**spec, "parent": f"{P}/locations/us-east5-a", "node_id": "elsewhere"}
    body = {"tpu": {"node_spec": [elsewhere]}, "spot": {}}
    with pytest.raises(RefusedError, match=r"the parent of node .*elsewhere must be"):
        client_of(services, method).create(f"{P}/locations/us-east5-b", "asks-elsewhere", body)


def test_versions_of_a_secret_are_read_while_they_are_enabled(services: Services) -> None:
    secrets = client_of(services, "secretmanager.projects.secrets")
    name, client = secrets.create(P, "versioned", {"replication": {"automatic": {}}}), secrets._client
    for payload in (b"one", b"two"):
        client.add_secret_version(parent=name, payload={"data": payload})
    assert client.access_secret_version(name=f"{name}/versions/latest").payload.data == b"two"
    assert client.access_secret_version(name=f"{name}/versions/1").payload.data == b"one"
    with pytest.raises(BadRequest, match="checksum"):
        client.add_secret_version(parent=name, payload={"data": b"three", "data_crc32c": 1})
    client.disable_secret_version(name=f"{name}/versions/2")
    with pytest.raises(BadRequest, match="is in DISABLED state"):
        client.access_secret_version(name=f"{name}/versions/latest")
    client.enable_secret_version(name=f"{name}/versions/2")
    client.destroy_secret_version(name=f"{name}/versions/2")
    with pytest.raises(BadRequest, match="is in DESTROYED state"):
        client.enable_secret_version(name=f"{name}/versions/2")
    state = secretmanager_v1.SecretVersion.State
    listed = client.list_secret_versions(parent=name)
    assert {item.name[-1]: item.state for item in listed} == {"1": state.ENABLED, "2": state.DESTROYED}
    secrets.delete(name)


def test_what_nothing_runs_is_pending_until_it_is_cancelled(services: Services) -> None:
    """No success is claimed for a job that nothing ran."""
    jobs = client_of(services, "aiplatform.projects.locations.customJobs")
    job = jobs.create(L, "", body_of("aiplatform.projects.locations.customJobs"))
    with pytest.raises(RefusedError, match="JOB_STATE_PENDING"):
        Discovered.delete(jobs, job)
    jobs.delete(job)
    batches = client_of(services, "dataproc.projects.locations.batches")
    with services.stopped_clock():
        batch = batches.create(L, "pending", body_of("dataproc.projects.locations.batches"))
        with pytest.raises(RefusedError) as caught:
            Gapic.delete(batches, batch)
        assert caught.value.code in (400, 409)
        batches.delete(batch)
    run = client_of(services, "run.projects.locations.jobs")
    template = {"template": {"containers": [{"image": IMAGE}], "service_account": EMAIL}}
    ran = run.create(L, "never", {"template": template})
    with pytest.raises(GoogleAPICallError, match="not emulated"):
        run._client.run_job(name=ran)


@pytest.mark.parametrize(
    ("method", "role"),
    [
        ("aiplatform.projects.locations.customJobs", "roles/aiplatform.user"),
        ("cloudfunctions.projects.locations.functions", "roles/cloudfunctions.admin"),
        ("dataproc.projects.locations.batches", "roles/dataproc.editor"),
        ("eventarc.projects.locations.triggers", "roles/eventarc.admin"),
        ("run.projects.locations.jobs", "roles/run.admin"),
        ("run.projects.locations.services", "roles/run.admin"),
    ],
)
def test_whoever_sets_an_account_must_be_allowed_to_act_as_it(
    services: Services, method: str, role: str
) -> None:
    row = next(row for row in ROWS if row.method == method)
    who = f"{role.partition('/')[2]}@example.com"
    services.grant(services.iam.project, role, f"user:{who}")
    with pytest.raises(RefusedError, match=r"iam\.serviceAccounts\.actAs") as caught:
        row.make(services, who).create(row.parent, "acts", row.body)
    assert caught.value.code == 403


def test_a_channel_in_use_is_deleted_by_force_only(services: Services) -> None:
    channels = client_of(services, "monitoring.projects.notificationChannels")
    policies = client_of(services, "monitoring.projects.alertPolicies")
    channel = channels.create(P, "", body_of("monitoring.projects.notificationChannels"))
    body = body_of("monitoring.projects.alertPolicies") | {"notificationChannels": [channel]}
    policy = policies.create(P, "", body)
    with pytest.raises(RefusedError, match="used by"):
        channels.delete(channel)
    channels._run(channels._resource.delete(name=channel, force=True))
    assert not policies.get(policy).get("notificationChannels")


def sent(package: Any) -> Iterator[Any]:
    """Every message that a client's requests may have, by its descriptor."""
    seen: dict[str, Any] = {}

    def visit(descriptor: Any) -> None:
        if descriptor.full_name not in seen:
            seen[descriptor.full_name] = descriptor
            for field in descriptor.fields:
                if field.message_type:
                    visit(field.message_type)

    for name in dir(package):
        result = getattr(package, name)
        if isinstance(result, type) and issubclass(result, proto.Message) and "Response" not in name:
            visit(type(result.pb(result())).DESCRIPTOR)
    yield from seen.values()


@pytest.mark.parametrize(
    ("api", "version", "package"),
    sorted(
        {
            (row.method.partition(".")[0], row.version, client.package.__name__)
            for row in ROWS
            if isinstance(client := row.make(None, ""), Gapic)  # type: ignore[arg-type]
        }
    ),
)
def test_enums_have_the_numbers_of_the_clients(api: str, version: str, package: str) -> None:
    schemas, compared, wrong = description(api, version)["schemas"], 0, []
    for message in sent(importlib.import_module(package)):
        ends = (f"V1{message.name}", f"V2{message.name}")
        for name in (schema for schema in schemas if schema == message.name or schema.endswith(ends)):
            for field in message.fields:
                known = schemas[name].get("properties", {}).get(field.json_name, {})
                known = known.get("items", known)
                if not field.enum_type or "enum" not in known or known.get("readOnly"):
                    continue
                counted = " ".join(map(str, range(len(known["enum"]))))
                claimed = NUMBERS.get((api, f"{name}.{field.json_name}"), counted).split()
                own = dict(zip(known["enum"], claimed, strict=False))
                numbers = {value.name: str(value.number) for value in field.enum_type.values}
                if any(own[key] != number for key, number in numbers.items() if key in own):
                    wrong.append(
                        f"{name}.{field.json_name}: {' '.join(numbers.get(k, '-') for k in known['enum'])}"
                    )
                compared += 1
    assert compared
    assert wrong == []

"""Methods beyond the plain ones, by official clients; and enums by their numbers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import proto
import pytest
from google.api_core.exceptions import BadRequest
from official import OWNER, Discovered, Gapic, RefusedError, description
from row import L, P
from rows import ROWS
from services_front import Services

from rehearsal.cloud.door.enums import NUMBERS


def client_of(services: Services, method: str) -> Any:
    return next(row for row in ROWS if row.method == method).make(services, OWNER)


def body_of(method: str) -> Any:
    return next(row for row in ROWS if row.method == method).body


def test_versions_of_a_secret_are_read_by_number_and_the_latest(services: Services) -> None:
    secrets = client_of(services, "secretmanager.projects.secrets")
    name, client = secrets.create(P, "versioned", {"replication": {"automatic": {}}}), secrets._client
    for payload in (b"one", b"two"):
        client.add_secret_version(parent=name, payload={"data": payload})
    assert client.access_secret_version(name=f"{name}/versions/latest").payload.data == b"two"
    assert client.access_secret_version(name=f"{name}/versions/1").payload.data == b"one"
    with pytest.raises(BadRequest, match="checksum"):
        client.add_secret_version(parent=name, payload={"data": b"three", "data_crc32c": 1})
    listed = client.list_secret_versions(parent=name)
    assert {item.name[-1] for item in listed} == {"1", "2"}
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


@pytest.mark.parametrize(
    ("method", "role"),
    [
        ("aiplatform.projects.locations.customJobs", "roles/aiplatform.user"),
        ("cloudfunctions.projects.locations.functions", "roles/cloudfunctions.admin"),
        ("dataproc.projects.locations.batches", "roles/dataproc.editor"),
        ("eventarc.projects.locations.triggers", "roles/eventarc.admin"),
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
            (row.method.partition(".")[0], row.version, client.package)
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

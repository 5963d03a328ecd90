"""Functions: the unmodified source, built as one account and served as another, for whoever may invoke it."""

from __future__ import annotations

import io
import json
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from boxed_front import PROJECT, REGION, Boxed, L, P

from rehearsal.cloud.core.runtime import HttpRequest
from rehearsal.world.layout import cache_dir
from rehearsal.world.runtimes import ensure
from tests.limits import HANG_S

pytestmark = pytest.mark.root
FUNCTIONS = f"cloudfunctions.googleapis.com/v2/{L}/functions"
REPOSITORY = f"{L}/repositories/images"
# Knows nothing of where it runs.
MAIN = """
import os
import functions_framework
from google.cloud import storage

@functions_framework.http
def check(request):
    print("asked", flush=True)
    if request.path == "/breaks":
        raise ValueError("broken")
    if request.path == "/event":
        of = request.headers
        print(of["Ce-Type"], of["Ce-Subject"], request.get_json()["size"], flush=True)
        return "", 204
    text = storage.Client(project="boxed").bucket("raw").blob(request.get_json()["name"]).download_as_text()
    return {"text": text, "mode": os.environ["MODE"], "path": request.path}, 200
"""


@pytest.fixture(scope="module")
def boxed() -> Iterator[Boxed]:
    with tempfile.TemporaryDirectory(prefix="box-") as folder:
        front = Boxed(Path(folder), function_python=str(ensure("functions", cache_dir())))
        front.bucket("raw")
        yield front
        front.close()


@pytest.fixture(scope="module", autouse=True)
def made(boxed: Boxed) -> None:
    """The accounts, the repository, the source and one deployed function."""
    builder = boxed.account("builder", "roles/logging.logWriter", "roles/storage.objectViewer")
    runner = boxed.account("runner")
    boxed.account("caller")
    boxed.grant("projects/_/buckets/raw", "roles/storage.objectViewer", f"serviceAccount:{runner}")
    url = f"artifactregistry.googleapis.com/v1/{L}/repositories?repositoryId=images"
    boxed.done("artifactregistry.googleapis.com/v1", boxed.answer("POST", url, {"format": "DOCKER"}))
    boxed.grant(REPOSITORY, "roles/artifactregistry.writer", f"serviceAccount:{builder}")
    boxed.upload("a.txt", b"one")
    source(boxed, "f.zip", MAIN, "functions-framework>=3\ngoogle-cloud-storage\n")
    operation = deploy(boxed, "checks")
    assert "error" not in operation, operation


def source(boxed: Boxed, name: str, main: str, requirements: str = "") -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("main.py", main)
        archive.writestr("requirements.txt", requirements)
    boxed.upload(name, packed.getvalue())


def email(name: str) -> str:
    return f"{name}@{PROJECT}.iam.gserviceaccount.com"


def body(source: str = "f.zip", builder: str = "builder", **more: Any) -> Any:
    return {
        "buildConfig": {
            "runtime": "python312",
            "entryPoint": "check",
            "source": {"storageSource": {"bucket": "raw", "object": source}},
            "serviceAccount": f"{P}/serviceAccounts/{email(builder)}",
            "dockerRepository": REPOSITORY,
        },
        "serviceConfig": {"serviceAccountEmail": email("runner"), "environmentVariables": {"MODE": "strict"}},
        **more,
    }


def deploy(boxed: Boxed, name: str, **of: Any) -> Any:
    started = boxed.answer("POST", f"{FUNCTIONS}?functionId={name}", body(**of))
    return boxed.done("cloudfunctions.googleapis.com/v2", started)


def invoke(
    boxed: Boxed, path: str = "/", account: str = "caller", auth: str = "OIDC", audience: str = ""
) -> Any:
    """Send a request to the function's own address."""
    uri = boxed.answer("GET", f"{FUNCTIONS}/checks")["serviceConfig"]["uri"]
    sent = json.dumps({"name": "a.txt"}).encode()
    kind = {"Content-Type": "application/json"}
    request = HttpRequest("POST", uri + path, kind, sent, auth, audience or uri, 30)
    return boxed.call(boxed.cloud.caller.send(request, email(account)))


def test_only_who_has_the_role_on_the_service_invokes_it(boxed: Boxed) -> None:
    refused = invoke(boxed)
    assert (refused.status, b"does not have permission to get URL" in refused.body) == (403, True)
    boxed.grant(f"{L}/services/checks", "roles/run.invoker", f"serviceAccount:{email('caller')}")
    answer = invoke(boxed)
    assert (answer.status, json.loads(answer.body)) == (200, {"text": "one", "mode": "strict", "path": "/"})
    assert invoke(boxed, auth="").status == 403  # no token
    assert invoke(boxed, auth="OAuth2").status == 401  # an access token
    assert invoke(boxed, audience="https://other.run.app").status == 401
    assert invoke(boxed, account="runner").status == 403


def test_its_requests_are_its_accounts_and_its_output_is_logged(boxed: Boxed) -> None:
    assert invoke(boxed).status == 200
    requests = [
        request for request in boxed.cloud.requests.since(0)["requests"] if "/o/a.txt" in request["path"]
    ]
    assert {item["principal"] for item in requests} == {email("runner")}
    of_it = 'resource.type="cloud_run_revision" AND resource.labels.service_name="checks"'
    end = time.monotonic() + HANG_S
    while "asked" not in [item["textPayload"] for item in boxed.logged(of_it)]:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_an_event_of_a_new_object_is_handed_to_it_in_binary_mode(boxed: Boxed) -> None:
    member = f"serviceAccount:{boxed.account('trigger', 'roles/eventarc.eventReceiver')}"
    boxed.grant(f"{L}/services/checks", "roles/run.invoker", member)
    for agent, role in (
        ("gcp-sa-eventarc", "eventarc.serviceAgent"),
        ("gs-project-accounts", "pubsub.publisher"),
    ):
        name = f"serviceAccount:service-123456789012@{agent}.iam.gserviceaccount.com"
        if agent == "gcp-sa-eventarc":
            boxed.cloud.iam.agents.add(name.partition(":")[2])
        boxed.grant(P, f"roles/{role}", name)
    kind = "google.cloud.storage.object.v1.finalized"
    body = {
        "name": f"{L}/triggers/to-function",
        "eventFilters": [{"attribute": "type", "value": kind}, {"attribute": "bucket", "value": "raw"}],
        "destination": {"cloudRun": {"service": "checks", "region": REGION, "path": "/event"}},
        "serviceAccount": email("trigger"),
    }
    url = f"eventarc.googleapis.com/v1/{L}/triggers?triggerId=to-function"
    boxed.done("eventarc.googleapis.com/v1", boxed.answer("POST", url, body))
    boxed.upload("new.txt", b"12345")
    of_it = 'resource.type="cloud_run_revision" AND resource.labels.service_name="checks"'
    end = time.monotonic() + HANG_S
    while f"{kind} objects/new.txt 5" not in [item["textPayload"] for item in boxed.logged(of_it)]:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_an_error_in_it_is_a_500_and_the_next_request_is_served(boxed: Boxed) -> None:
    assert invoke(boxed, "/breaks").status == 500
    assert invoke(boxed).status == 200


def test_a_fault_of_the_scenario_strikes_invocations(boxed: Boxed) -> None:
    match = {"method": "run.services.invoke", "principal": email("caller")}
    rule = boxed.cloud.faults.add({"match": match, "times": 1, "what": {"status": 503}})
    assert [invoke(boxed).status, invoke(boxed).status] == [503, 200]
    assert boxed.cloud.faults.lift(rule) == 1


@pytest.mark.parametrize(
    ("main", "requirements", "reason"),
    [
        ("def check(request: return 1", "", "SyntaxError"),
        ("def other(request): return 1", "", "check"),
        (MAIN, "no-such-package==1\n", "no-such-package==1: not installed"),
        (MAIN, "functions-framework<2\n", "is installed"),
    ],
)
def test_a_source_that_cannot_run_fails_with_its_reason(
    boxed: Boxed, main: str, requirements: str, reason: str
) -> None:
    name = f"fails-{len(main)}-{len(requirements)}"
    source(boxed, f"{name}.zip", main, requirements)
    operation = deploy(boxed, name, source=f"{name}.zip")
    assert reason in operation["error"]["message"]
    described = boxed.answer("GET", f"{FUNCTIONS}/{name}")
    assert (described["state"], reason in described["stateMessages"][0]["message"]) == ("FAILED", True)


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        ((), "lacks logging.logEntries.create"),
        (("roles/logging.logWriter",), "lacks artifactregistry.repositories.uploadArtifacts"),
        (("roles/logging.logWriter", "roles/artifactregistry.writer"), "storage.objects.get"),
    ],
)
def test_what_the_build_account_lacks_is_named(boxed: Boxed, roles: tuple[str, ...], reason: str) -> None:
    name = f"builds-{len(roles)}"
    boxed.account(name, *roles)
    operation = deploy(boxed, name, builder=name)
    assert reason in operation["error"]["message"]


def test_a_new_source_takes_the_place_of_the_old_one(boxed: Boxed) -> None:
    source(
        boxed, "g.zip", "import functions_framework\n@functions_framework.http\ndef check(r): return 'new'\n"
    )
    changed = {"buildConfig": {"source": {"storageSource": {"bucket": "raw", "object": "g.zip"}}}}
    url = f"{FUNCTIONS}/checks?updateMask=buildConfig.source.storageSource"
    operation = boxed.done("cloudfunctions.googleapis.com/v2", boxed.answer("PATCH", url, changed))
    assert "error" not in operation, operation
    assert invoke(boxed).body == b"new"


def test_a_deleted_function_answers_nothing_and_takes_its_service_along(boxed: Boxed) -> None:
    uri = boxed.answer("GET", f"{FUNCTIONS}/checks")["serviceConfig"]["uri"]
    boxed.done("cloudfunctions.googleapis.com/v2", boxed.answer("DELETE", f"{FUNCTIONS}/checks"))
    assert boxed.send("GET", f"run.googleapis.com/v2/{L}/services/checks").status == 404
    assert boxed.send("GET", uri.removeprefix("https://")).status == 404

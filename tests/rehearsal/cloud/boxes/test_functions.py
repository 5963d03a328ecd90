"""Functions: the unmodified source, built as one account and served as another, for whoever may invoke it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from boxed_front import REGION, Boxed, L, P
from boxed_functions import FUNCTIONS, address, body, deploy, email, opened, request, source

from google_facts import builds
from google_facts.agents import AGENTS
from infra.google.failures import Kind, classify
from tests.emulated import NUMBER
from tests.limits import until

pytestmark = pytest.mark.root
OF_IT = 'resource.type="cloud_run_revision" AND resource.labels.service_name="checks"'
# Knows nothing of where it runs.
MAIN = """
import json, os, time
import functions_framework
import google.auth
from google.auth.transport.requests import AuthorizedSession

OBJECTS = "https://storage.googleapis.com/storage/v1/b/raw/o"

def get(name):
    return AuthorizedSession(google.auth.default()[0]).get(f"{OBJECTS}/{name}?alt=media")

@functions_framework.http
def check(request):
    print("asked", flush=True)
    if request.path == "/breaks":
        raise ValueError("broken")
    if request.path == "/event":
        of = request.headers
        line = {"type": of["Ce-Type"], "subject": of["Ce-Subject"], "size": request.get_json()["size"]}
        print(json.dumps({"severity": "NOTICE", "message": "an event", **line}), flush=True)
        return "", 204
    if request.path == "/scheduled":
        of = {key: request.headers[f"X-CloudScheduler-{key}"] for key in ("JobName", "ScheduleTime")}
        print(json.dumps({"severity": "ERROR", "message": " ".join(of.values())}), flush=True)
        return "", 204
    if request.path == "/waits":
        print(f"waits in {os.getpid()}", flush=True)
        while get("go").status_code == 404:
            time.sleep(0.05)
        return {key: os.environ[key] for key in ("K_SERVICE", "K_REVISION", "PORT")} | {"pid": os.getpid()}
    text = get(request.get_json()["name"]).text
    return {"text": text, "mode": os.environ["MODE"], "path": request.path}, 200
"""


@pytest.fixture(scope="module")
def boxed() -> Iterator[Boxed]:
    """Open a cloud with a deployed function."""
    with opened() as front:
        front.upload("a.txt", b"one")
        source(front, "f.zip", MAIN, "functions-framework>=3\ngoogle-auth\n")
        serve(front, "checks", maxInstanceCount=2)
        yield front


def serve(boxed: Boxed, name: str, **of: Any) -> None:
    """Deploy a function that `caller` may invoke."""
    operation = deploy(boxed, name, **of)
    assert "error" not in operation, operation
    boxed.grant(f"{L}/services/{name}", "roles/run.invoker", f"serviceAccount:{email('caller')}")


@pytest.fixture(scope="module")
def changing(boxed: Boxed) -> str:
    """Return the name of a function that tests change."""
    serve(boxed, "changing")
    return "changing"


def invoke(
    boxed: Boxed, path: str = "/", account: str = "caller", auth: str = "OIDC", audience: str = "",
    name: str = "checks",
) -> Any:  # fmt: skip
    """Send a request to the function's own address."""
    sent = request(address(boxed, name), path, auth, audience)
    return boxed.call(boxed.cloud.caller.send(sent, email(account)))


def logged(boxed: Boxed, **of: Any) -> Any:
    """The first entry of the function's log with these fields, once it is there."""

    def entry() -> Any:
        logged = boxed.logged(OF_IT)
        return next((e for e in logged if of.items() <= {**e, **e.get("jsonPayload", {})}.items()), None)

    return until(entry)


def test_only_who_has_the_role_on_the_service_invokes_it(boxed: Boxed) -> None:
    visitor = boxed.account("visitor")
    refused = invoke(boxed, account="visitor")
    assert (refused.status, b"does not have permission to get URL" in refused.body) == (403, True)
    boxed.grant(f"{L}/services/checks", "roles/run.invoker", f"serviceAccount:{visitor}")
    answer = invoke(boxed, account="visitor")
    assert (answer.status, json.loads(answer.body)) == (200, {"text": "one", "mode": "strict", "path": "/"})
    assert invoke(boxed, auth="").status == 403  # no token
    assert invoke(boxed, auth="OAuth2").status == 401  # an access token
    assert invoke(boxed, audience="https://other.run.app").status == 401
    assert invoke(boxed, account="runner").status == 403


def test_functions_agent_must_see_the_repository(boxed: Boxed) -> None:
    agent = AGENTS["cloudfunctions"].email(NUMBER)
    counted, boxed.cloud.iam.agents[agent] = boxed.cloud.iam.agents[agent], float("inf")
    refused = boxed.send("POST", f"{FUNCTIONS}?functionId=early", body())
    boxed.cloud.iam.agents[agent] = counted
    assert (refused.status, b"retrieve the repository metadata" in refused.body) == (403, True)


def test_a_project_without_quota_of_builds_in_the_region_builds_no_function(boxed: Boxed) -> None:
    boxed.cloud.quotas.set(builds.TITLE, REGION, 0)
    failed = deploy(boxed, "elsewhere")
    boxed.cloud.quotas.set(builds.TITLE, REGION, 1)
    assert (failed["error"]["code"], failed["error"]["message"]) == (9, builds.REFUSED)
    assert classify(f"Error code 9, message: {builds.REFUSED}").kind is Kind.QUOTA


def test_its_requests_are_its_accounts_and_its_output_is_logged(boxed: Boxed) -> None:
    assert invoke(boxed).status == 200
    requests = [
        request for request in boxed.cloud.requests.since(0)["requests"] if "/o/a.txt" in request["path"]
    ]
    assert {item["principal"] for item in requests} == {email("runner")}
    logged(boxed, textPayload="asked")


def test_an_event_of_a_new_object_is_handed_to_it_in_binary_mode(boxed: Boxed) -> None:
    member = f"serviceAccount:{boxed.account('trigger', 'roles/eventarc.eventReceiver')}"
    boxed.grant(f"{L}/services/checks", "roles/run.invoker", member)
    for agent, role in (
        ("gcp-sa-eventarc", "eventarc.serviceAgent"),
        ("gs-project-accounts", "pubsub.publisher"),
    ):
        name = f"serviceAccount:service-123456789012@{agent}.iam.gserviceaccount.com"
        boxed.cloud.iam.agents[name.partition(":")[2]] = 0.0
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
    entry = logged(boxed, type=kind, subject="objects/new.txt", size="5")
    assert (entry["severity"], entry["jsonPayload"]["message"]) == ("NOTICE", "an event")
    assert "severity" not in entry["jsonPayload"]
    assert entry["logName"].endswith("run.googleapis.com%2Fstdout")
    assert entry["labels"]["execution_id"]


def test_a_scheduled_job_calls_it_with_an_identity_token(boxed: Boxed) -> None:
    uri, jobs = address(boxed, "checks"), f"{P}/locations/us-east4/jobs"
    http = {"uri": f"{uri}/scheduled", "httpMethod": "POST", "body": base64.b64encode(b"{}").decode()}
    http["oidcToken"] = {"serviceAccountEmail": email("caller"), "audience": uri}  # type: ignore[assignment]
    job = {"name": f"{jobs}/calls", "schedule": "0 3 1 1 *", "httpTarget": http}
    boxed.answer("POST", f"cloudscheduler.googleapis.com/v1/{jobs}", job)
    boxed.answer("POST", f"cloudscheduler.googleapis.com/v1/{jobs}/calls:run", {})
    logged(boxed, severity="ERROR")
    calls = [item for item in boxed.logged(OF_IT) if item.get("textPayload", "").startswith("calls 20")]
    assert [item["severity"] for item in calls] == ["ERROR"], "a message that is alone is text"


def test_a_call_that_takes_long_holds_up_no_other(boxed: Boxed) -> None:
    """Start a second instance for the second request: each takes one."""
    uri = address(boxed, "checks")

    async def begin() -> list[asyncio.Task[Any]]:
        sent = [boxed.cloud.caller.send(request(uri, "/waits"), email("caller")) for _ in range(2)]
        return [asyncio.ensure_future(item) for item in sent]

    async def end(calls: list[asyncio.Task[Any]]) -> list[Any]:
        return await asyncio.gather(*calls)

    calls = boxed.call(begin())
    until(lambda: sum("waits in" in entry.get("textPayload", "") for entry in boxed.logged(OF_IT)) == 2)
    boxed.upload("go", b"")
    replies = [json.loads(reply.body) for reply in boxed.call(end(calls))]
    assert len({reply["pid"] for reply in replies}) == 2
    assert {(reply["K_SERVICE"], reply["K_REVISION"], reply["PORT"]) for reply in replies} == {
        ("checks", "checks-00001", "8080")
    }


def test_people_do_not_reach_one_with_internal_ingress(
    boxed: Boxed, changing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = {"serviceConfig": {"ingressSettings": "ALLOW_INTERNAL_ONLY"}}
    url = f"{FUNCTIONS}/{changing}?updateMask=serviceConfig.ingressSettings"
    boxed.done("cloudfunctions.googleapis.com/v2", boxed.answer("PATCH", url, change))
    assert invoke(boxed, name=changing).status == 200, "Google's own services still do"
    service = boxed.answer("GET", f"run.googleapis.com/v2/{L}/services/{changing}")
    assert service["ingress"] == "INGRESS_TRAFFIC_INTERNAL_ONLY"
    monkeypatch.setattr(boxed.cloud.caller, "secret", "of another")
    reply = invoke(boxed, name=changing)
    assert (reply.status, b"Page not found" in reply.body) == (404, True)


def test_a_request_may_not_be_larger_than_googles_limit(boxed: Boxed) -> None:
    sent = request(address(boxed, "checks"))
    large = replace(sent, body=bytes((32 << 20) + 1))
    assert boxed.call(boxed.cloud.caller.send(large, email("caller"))).status == 413


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
    ],
)
def test_what_the_build_account_lacks_is_named(boxed: Boxed, roles: tuple[str, ...], reason: str) -> None:
    name = f"builds-{len(roles)}"
    boxed.account(name, "roles/storage.objectViewer", *roles)
    operation = deploy(boxed, name, builder=name)
    assert reason in operation["error"]["message"]


def test_a_source_that_the_build_account_may_read_is_not_what_is_built_from(boxed: Boxed) -> None:
    """Google copies it to a bucket of its own first, which comes with the region's first function."""
    builder = boxed.account("reads-raw", "roles/logging.logWriter", "roles/artifactregistry.writer")
    raw = "projects/_/buckets/raw"
    boxed.grant(raw, "roles/storage.objectViewer", f"serviceAccount:{builder}")
    error = deploy(boxed, "of-raw", builder="reads-raw")["error"]
    copies = f"gcf-v2-sources-{NUMBER}-{REGION}"
    assert error == {
        "code": 13,
        "message": "Build failed with status: FAILURE and message: failed to Fetch: failed to download "
        f"archive gs://{copies}/of-raw/function-source.zip: Access to bucket {copies} denied. You must grant "
        f"Storage Object Viewer permission to {builder}. If you are using VPC Service Controls, you must "
        "also grant it access to your service perimeter.",
    }
    limit = f'resource.name.startsWith("projects/_/buckets/{copies}")'
    member, role = f"serviceAccount:{builder}", "roles/storage.objectViewer"
    boxed.grant(P, role, member, {"title": "sources", "expression": limit})
    assert "error" not in deploy(boxed, "of-copies", builder="reads-raw")


def test_a_source_is_of_its_generation_or_is_not_built(boxed: Boxed) -> None:
    other = "import functions_framework\n@functions_framework.http\ndef check(r): return 'mine'\n"
    source(boxed, "pinned.zip", MAIN)
    url = "storage.googleapis.com/storage/v1/b/raw/o/pinned.zip"
    generation = boxed.answer("GET", url)["generation"]
    source(boxed, "pinned.zip", other)
    operation = deploy(boxed, "pinned", source="pinned.zip", generation=generation)
    assert "No such object: raw/pinned.zip" in operation["error"]["message"]


def test_a_new_source_takes_the_place_of_the_old_one(boxed: Boxed, changing: str) -> None:
    source(
        boxed, "g.zip", "import functions_framework\n@functions_framework.http\ndef check(r): return 'new'\n"
    )
    changed = {"buildConfig": {"source": {"storageSource": {"bucket": "raw", "object": "g.zip"}}}}
    url = f"{FUNCTIONS}/{changing}?updateMask=buildConfig.source.storageSource"
    operation = boxed.done("cloudfunctions.googleapis.com/v2", boxed.answer("PATCH", url, changed))
    assert "error" not in operation, operation
    assert invoke(boxed, name=changing).body == b"new"


def test_a_deleted_function_answers_nothing_and_takes_its_service_along(boxed: Boxed) -> None:
    serve(boxed, "gone")
    uri = address(boxed, "gone")
    boxed.done("cloudfunctions.googleapis.com/v2", boxed.answer("DELETE", f"{FUNCTIONS}/gone"))
    assert boxed.send("GET", f"run.googleapis.com/v2/{L}/services/gone").status == 404
    assert boxed.send("GET", uri.removeprefix("https://")).status == 404

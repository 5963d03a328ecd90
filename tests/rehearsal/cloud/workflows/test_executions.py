"""Executions through the API: one of each outcome, as the workflow's account, past IAM and fault rules."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from cloud_front import PROJECT, CloudFront

P = f"projects/{PROJECT}"
WORKFLOWS = f"workflows.googleapis.com/v1/{P}/locations/us-east5/workflows"
EXECUTIONS = f"workflowexecutions.googleapis.com/v1/{P}/locations/us-east5/workflows"
RUNNER = f"runner@{PROJECT}.iam.gserviceaccount.com"
TOPICS = f"https://pubsub.googleapis.com/v1/{P}/topics"
# Creates a topic; the permission is the account's or isn't.
CREATES = f"""
main:
  params: [args]
  steps:
    - create:
        try:
          call: http.put
          args: {{url: '${{"{TOPICS}/" + args.topic}}', body: {{}}, auth: {{type: OAuth2}}}}
          result: made
        retry: ${{http.default_retry}}
    - done: {{return: '${{made.body.name}}'}}
"""
# Says what is missing, as a definition with named outcomes does.
NAMES = CREATES.replace(
    "        retry: ${http.default_retry}\n",
    """        except:
          as: e
          steps:
            - named:
                return: '${string(e.code) + ": " + e.body.error.message}'
""",
)


@pytest.fixture(scope="module", autouse=True)
def runner(cloud: CloudFront) -> None:
    cloud.request("POST", f"iam.googleapis.com/v1/{P}/serviceAccounts", {"accountId": "runner"})
    grant(cloud, "roles/pubsub.editor")


def grant(cloud: CloudFront, *roles: str) -> None:
    """The account has these roles on the project, and no others."""
    policy = cloud.iam.policy(P)
    member = f"serviceAccount:{RUNNER}"
    others = [binding for binding in policy["bindings"] if member not in binding["members"]]
    bindings = [*others, *({"role": role, "members": [member]} for role in roles)]
    cloud.iam.set_policy(P, {**policy, "bindings": bindings})


def deploy(cloud: CloudFront, name: str, source: str, **more: Any) -> None:
    body = {"sourceContents": source, "serviceAccount": RUNNER, **more}
    reply = cloud.request("POST", f"{WORKFLOWS}?workflowId={name}", body)
    assert reply.status == 200, reply.body
    cloud.until_done("workflows.googleapis.com/v1", reply.json["name"])


def execute(cloud: CloudFront, name: str, argument: Any = None) -> str:
    reply = cloud.request("POST", f"{EXECUTIONS}/{name}/executions", {"argument": json.dumps(argument)})
    assert (reply.status, reply.json["state"]) == (200, "ACTIVE"), reply.body
    return f"workflowexecutions.googleapis.com/v1/{reply.json['name']}"


def ended(cloud: CloudFront, url: str) -> Any:
    for _ in range(60_000):
        result = cloud.request("GET", url).json
        if result["state"] != "ACTIVE":
            return result
        time.sleep(0.01)
    raise AssertionError(f"{url} is still active")


def test_an_execution_succeeds_with_what_it_returns(cloud: CloudFront) -> None:
    deploy(cloud, "creates", CREATES)
    result = ended(cloud, execute(cloud, "creates", {"topic": "made-by-it"}))
    assert (result["state"], json.loads(result["result"])) == ("SUCCEEDED", f"{P}/topics/made-by-it")
    assert f"{P}/topics/made-by-it" in cloud.world.directory
    assert result["workflowRevisionId"].startswith("000001-")
    assert "error" not in result
    requests = [
        request for request in cloud.requests.since(0)["requests"] if request["path"].endswith("made-by-it")
    ]
    assert [item["principal"] for item in requests] == [RUNNER]


def test_without_the_permission_the_request_is_a_403_in_the_workflow(cloud: CloudFront) -> None:
    deploy(cloud, "refused", CREATES)
    deploy(cloud, "named", NAMES)
    grant(cloud, "roles/pubsub.viewer")
    try:
        result = ended(cloud, execute(cloud, "refused", {"topic": "never"}))
        named = ended(cloud, execute(cloud, "named", {"topic": "never"}))
    finally:
        grant(cloud, "roles/pubsub.editor")
    assert result["state"] == "FAILED"
    payload = json.loads(result["error"]["payload"])
    assert (payload["code"], payload["tags"]) == (403, ["HttpError"])
    assert "pubsub.topics.create" in payload["body"]["error"]["message"]
    assert result["error"]["context"] == (
        'HTTP server responded with error code 403\nin step "create", routine "main", line: 6'
    )
    (element,) = result["error"]["stackTrace"]["elements"]
    assert (element["step"], element["position"]["line"]) == ("create", "6")
    assert (named["state"], "403: Permission 'pubsub.topics.create'" in named["result"]) == (
        "SUCCEEDED",
        True,
    )


def test_a_fault_of_the_scenario_strikes_its_requests_and_a_retry_gets_past_it(cloud: CloudFront) -> None:
    deploy(cloud, "disturbed", CREATES)
    match = {"method": "pubsub.projects.topics.create", "principal": RUNNER}
    rule = cloud.faults.add({"match": match, "times": 2, "what": {"status": 503}})
    result = ended(cloud, execute(cloud, "disturbed", {"topic": "after-all"}))
    assert result["state"] == "SUCCEEDED"
    assert cloud.faults.lift(rule) == 2


def test_an_execution_is_cancelled_and_says_where_it_was(cloud: CloudFront) -> None:
    deploy(cloud, "waits", "- wait: {call: sys.sleep, args: {seconds: 86400}}\n- done: {return: 1}")
    with cloud.stopped_clock():
        url = execute(cloud, "waits")
        for _ in range(100):
            if "status" in (result := cloud.request("GET", url).json):
                break
        assert result["status"]["currentSteps"] == [{"routine": "main", "step": "wait"}]
        assert cloud.request("POST", f"{url}:cancel", {}).json["state"] == "CANCELLED"
        again = cloud.request("POST", f"{url}:cancel", {})
    assert (again.status, "CANCELLED" in again.error) == (400, True)
    assert cloud.request("GET", url).json["state"] == "CANCELLED"


def test_time_is_the_clouds(cloud: CloudFront) -> None:
    source = "- a: {assign: [{t: '${sys.now()}'}]}\n- b: {call: sys.sleep, args: {seconds: 600}}\n"
    deploy(cloud, "times", f"{source}- c: {{return: '${{sys.now() - t}}'}}")
    began = time.monotonic()
    result = ended(cloud, execute(cloud, "times"))
    assert 600 <= json.loads(result["result"]) < 4000
    assert float(result["duration"].removesuffix("s")) >= 600
    assert time.monotonic() - began < 10


def test_lines_go_to_cloud_logging_as_the_account_which_must_be_allowed_to(cloud: CloudFront) -> None:
    source = "- say: {call: sys.log, args: {json: {event: noted}, severity: NOTICE}}\n- done: {return: ok}"
    deploy(cloud, "logs", source)
    refused = ended(cloud, execute(cloud, "logs"))
    assert "logging.logEntries.create" in refused["error"]["context"]
    grant(cloud, "roles/pubsub.editor", "roles/logging.logWriter")
    result = ended(cloud, execute(cloud, "logs"))
    grant(cloud, "roles/pubsub.editor")
    assert result["result"] == '"ok"'
    labels = 'resource.labels.workflow_id="logs"'
    body = {"resourceNames": [P], "filter": labels, "orderBy": "timestamp asc"}
    entries = cloud.request("POST", "logging.googleapis.com/v2/entries:list", body).json["entries"]
    own = [entry for entry in entries if entry["logName"].endswith("/Workflows")]
    assert [(item["severity"], item["jsonPayload"]) for item in own] == [("NOTICE", {"event": "noted"})]
    states = [entry["jsonPayload"]["state"] for entry in entries if "executions_system" in entry["logName"]]
    assert states == ["ACTIVE", "FAILED", "ACTIVE", "SUCCEEDED"]


def test_a_definition_has_its_environment(cloud: CloudFront) -> None:
    names = ("GOOGLE_CLOUD_PROJECT_ID", "GOOGLE_CLOUD_LOCATION", "BUCKET")
    calls = ", ".join(f"'${{sys.get_env(\"{name}\")}}'" for name in names)
    deploy(cloud, "environment", f"- done: {{return: [{calls}]}}", userEnvVars={"BUCKET": "raw"})
    result = ended(cloud, execute(cloud, "environment"))
    assert json.loads(result["result"]) == [PROJECT, "us-east5", "raw"]


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"sourceContents": "- a: {retrun: 1}"}, 400, "unknown key 'retrun'"),
        ({"sourceContents": "- a: {parallel: {}}"}, 501, "'parallel' is not covered"),
        ({"userEnvVars": {f"K{n}": "v" for n in range(21)}}, 400, "20 environment variables"),
        ({"userEnvVars": {"GOOGLE_X": "v"}}, 400, "can't have this name"),
    ],
)
def test_a_workflow_that_is_wrong_is_refused(
    cloud: CloudFront, change: Any, status: int, message: str
) -> None:
    body = {"sourceContents": "- a: {return: 1}", "serviceAccount": RUNNER, **change}
    reply = cloud.request("POST", f"{WORKFLOWS}?workflowId=wrong", body)
    assert (reply.status, message in reply.error) == (status, True), reply.error


def test_an_argument_is_json_of_32_kib_at_most(cloud: CloudFront) -> None:
    deploy(cloud, "takes", "main:\n  params: [a]\n  steps: [{done: {return: '${a}'}}]")
    for argument in ("{", json.dumps("x" * (32 << 10))):
        assert cloud.request("POST", f"{EXECUTIONS}/takes/executions", {"argument": argument}).status == 400
    assert ended(cloud, execute(cloud, "takes", {"x": [1.5]}))["result"] == '{"x": [1.5]}'

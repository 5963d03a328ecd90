"""A destroy is refused while members or jobs depend on the stack, or while that isn't known."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import requests
from google.auth.exceptions import RefreshError

from infra.core.guard import JOBS, MEMBERS, PODS, LivingError, refuse
from infra.google import client
from tests.served import Received, Reply, serving

LABELS = {"environment": "dev", "stack": "5a5a5a5"}


class Api:
    """The TPU API at a private endpoint: answers in order, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.requests: list[tuple[str, dict[str, list[str]], str]] = []


@pytest.fixture(name="api")
def _api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    api = Api()

    def answer(request: Received) -> Reply:
        api.requests.append((request.path, request.query, request.headers["Authorization"]))
        return Reply(*(api.answers.pop(0) if len(api.answers) > 1 else api.answers[0]))

    with serving(answer) as address:
        monkeypatch.setenv("GOOGLE_TPU_V2_CUSTOM_ENDPOINT", f"http://{address}/private/")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "token")
        monkeypatch.setattr(client, "_PAUSE_S", 0.001)
        yield api


def node(number: int, **labels: str) -> dict[str, Any]:
    return {"name": f"projects/p/locations/z/nodes/n-{number}", "labels": {**LABELS, **labels}}


def test_members_that_live_are_named_with_the_command_that_ends_them(api: Api) -> None:
    first = [node(n, fleet="extract") for n in range(4)]
    more = [node(n, fleet="a") for n in range(4, 7)]
    api.answers = [(200, {"nodes": first, "nextPageToken": "2"}), (200, {"nodes": more})]
    with pytest.raises(LivingError) as refused:
        refuse(MEMBERS, "p", "dev", LABELS)
    assert str(refused.value) == (
        "in use by 7 members of fleets: a/n-4, a/n-5, a/n-6, extract/n-0, extract/n-1 and 2 more\n"
        "    fix: tpu fleet delete dev --slice a --slice extract, or --orphans if it knows no slice of the "
        "name; then again"
    )
    assert [item[1].get("pageToken") for item in api.requests] == [None, ["2"]]
    assert {(path, output) for path, _, output in api.requests} == {
        ("/private/projects/p/locations/-/nodes", "Bearer token")
    }


def test_what_is_no_member_of_this_stack_keeps_nothing(api: Api) -> None:
    others = [node(0), node(1, fleet="extract", stack="another"), {"name": "projects/p/locations/z/nodes/n"}]
    api.answers = [(200, {"nodes": others})]
    refuse(MEMBERS, "p", "dev", LABELS)
    assert api.requests


def test_without_the_api_there_are_no_nodes(api: Api) -> None:
    api.answers = [(403, {"error": {"message": "Cloud TPU API has not been used in project p before"}})]
    refuse(MEMBERS, "p", "dev", LABELS)
    assert len(api.requests) == 1


def test_that_another_api_is_off_says_nothing_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Impersonation quotes why it was refused: without its API there is no token, whatever lives."""
    output = "IAM Service Account Credentials API has not been used in project p before or it is disabled"
    body = json.dumps(
        {"error": {"code": 403, "message": output, "details": [{"reason": "SERVICE_DISABLED"}]}}
    )
    session = mock.Mock(**{"request.side_effect": RefreshError("Unable to acquire", body)})  # type: ignore[no-untyped-call]
    monkeypatch.setattr(client, "_login", lambda: session)
    with pytest.raises(LivingError, match="login: no token"):
        refuse(MEMBERS, "p", "dev", LABELS)
    assert session.request.call_count == 1


@pytest.mark.parametrize("text", [None, "[]", '{"type": "impersonated_service_account"}'])
def test_a_login_that_is_none_is_a_sentence(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of google-auth's own errors, and of what a folder or another program's file makes it raise."""
    path = tmp_path / "login"
    path.mkdir() if text is None else path.write_text(text)
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(LivingError, match="fix: gcloud auth application-default login; then again"):
        refuse(MEMBERS, "p", "dev", LABELS)


@pytest.mark.parametrize(
    ("status", "body", "text", "fix", "requests"),
    [
        (200, {"unreachable": ["us-east5-a"]}, "us-east5-a can't be reached", "the same command again", 1),
        (503, {"error": {"message": "unavailable"}}, "transient: unavailable", "the same command again", 3),
        (
            403, {"error": {"message": "Permission 'tpu.nodes.list' denied"}}, "permission: Permission",
            "grant your account a role that holds tpu.nodes.list", 1,
        ),
        (401, {"error": {"message": "?"}}, "login: ", "gcloud auth application-default login; then again", 1),
    ],
)  # fmt: skip
def test_what_nobody_can_say_is_refused(
    status: int, body: Any, text: str, fix: str, requests: int, api: Api
) -> None:
    api.answers = [(status, body)]
    with pytest.raises(LivingError) as refused:
        refuse(MEMBERS, "p", "dev", LABELS)
    head, _, how = str(refused.value).partition("\n    fix: ")
    assert head.startswith("it isn't known whether members of fleets live: ")
    assert text in head
    assert how.startswith(fix)
    assert len(api.requests) == requests


class Web:
    """Answers by URL, a 404 for the rest."""

    def __init__(self, pages: dict[str, Any]):
        self.pages, self.requests = pages, []

    def request(self, method: str, url: str, **_: Any) -> requests.Response:
        self.requests.append(url)
        answer = requests.Response()
        answer.status_code = 200 if url in self.pages else 404
        answer._content = json.dumps(self.pages.get(url, {"kind": "Status", "message": "not found"})).encode()
        return answer


CLUSTERS = "https://container.googleapis.com/v1/projects/p/locations/-/clusters"
WORKLOADS = "https://gke-1.gke.goog/apis/kueue.x-k8s.io/v1beta2/workloads"


def cluster(**labels: str) -> dict[str, Any]:
    dns = {"dnsEndpointConfig": {"endpoint": "gke-1.gke.goog"}}
    return {"name": "tpu", "resourceLabels": labels, "controlPlaneEndpointsConfig": dns}


def workload(name: str, **conditions: str) -> dict[str, Any]:
    status = [{"type": kind, "status": value} for kind, value in conditions.items()]
    meta = {"name": f"jobset-{name}-1", "namespace": "vision", "ownerReferences": [{"name": name}]}
    return {"metadata": meta, "status": {"conditions": status}}


@pytest.mark.parametrize(
    ("clusters", "workloads", "living"),
    [
        ({}, None, None),
        ({"clusters": [cluster(environment="prod")]}, None, None),
        ({"clusters": [cluster(environment="dev")]}, None, None),
        (
            {"clusters": [cluster(environment="dev")]},
            [workload("done", Admitted="True", Finished="True")],
            None,
        ),
        ({"clusters": [cluster(environment="dev")]}, [workload("runs", Admitted="True")], "1 job: "),
        ({"clusters": [cluster(environment="dev")]}, [workload("waits")], "vision/waits"),
        ({"missingZones": ["us-east5-a"]}, None, "us-east5-a"),
        (
            {"clusters": [{**cluster(environment="dev"), "controlPlaneEndpointsConfig": {}}]},
            None,
            "no DNS name",
        ),
    ],
)
def test_jobs_that_run_or_wait_keep_what_they_stand_on(
    clusters: Any, workloads: Any, living: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = Web({CLUSTERS: clusters, **({} if workloads is None else {WORKLOADS: {"items": workloads}})})
    monkeypatch.setattr(client, "_login", lambda: web)
    if living is None:
        refuse(JOBS, "p", "dev", {"environment": "dev"})
    else:
        with pytest.raises(LivingError, match=living):
            refuse(JOBS, "p", "dev", {"environment": "dev"})
    assert web.requests
    if living == "vision/waits":
        refuse(JOBS, "p", "dev", {"environment": "dev"}, "speech")
        with pytest.raises(LivingError):
            refuse(JOBS, "p", "dev", {"environment": "dev"}, "vision")


@pytest.mark.parametrize("workloads", [None, [workload("runs", Admitted="True")]])
def test_jobs_on_a_cluster_without_our_labels_are_found_by_its_name(
    workloads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {} if workloads is None else {WORKLOADS: {"items": workloads}}
    web = Web({CLUSTERS.replace("locations/-", "locations/l") + "/theirs": cluster(), **pages})
    monkeypatch.setattr(client, "_login", lambda: web)
    labels = {"cluster": "projects/p/locations/l/clusters/theirs"}
    if workloads is None:
        refuse(JOBS, "p", "dev", labels)
    else:
        with pytest.raises(LivingError, match="in use by 1 job: vision/runs"):
            refuse(JOBS, "p", "dev", labels)
    refuse(JOBS, "p", "dev", {"cluster": "projects/p/locations/l/clusters/gone"})


def test_a_program_that_is_guarded_waits_for_none_of_googles_libraries() -> None:
    reported = "import sys, infra.core.guard; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", reported], capture_output=True, text=True, check=True
    ).stdout
    assert "infra.core.guard" in output.split()
    assert not {"google.auth", "requests"} & set(output.split())


def pod(name: str, node: str, kind: str = "Job", **labels: str) -> dict[str, Any]:
    owners = [{"kind": kind, "name": f"{name}-workers-0"}]
    return {
        "metadata": {"namespace": "vision", "name": f"{name}-0", "labels": labels, "ownerReferences": owners},
        "spec": {"nodeName": node},
    }


ON = {"cluster": "projects/p/locations/l/clusters/tpu", "pool": "train-0", "id": "any"}


def test_a_pool_on_which_jobs_run_stays_until_they_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    root = os.environ["GOOGLE_TPU_V2_CUSTOM_ENDPOINT"]
    monkeypatch.setenv("GOOGLE_CONTAINER_CUSTOM_ENDPOINT", root)
    monkeypatch.setenv("TPU_CONTROL_PLANE_URL", root.rstrip("/"))
    dns = {"controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"endpoint": "gke-1.us-east5.gke.goog"}}}
    pods = [
        pod("a", "n-0", **{"jobset.sigs.k8s.io/jobset-name": "train"}),
        pod("b", "n-0", **{"jobset.sigs.k8s.io/jobset-name": "train"}),
        pod("agent", "n-0", "DaemonSet"),
        pod("other", "another-node"),
    ]
    nodes = {"items": [{"metadata": {"name": "n-0"}}]}
    api.answers = [(200, dns), (200, nodes), (200, {"items": pods})]
    with pytest.raises(LivingError) as refused:
        refuse(PODS, "p", "dev", ON, "train-0")
    assert str(refused.value) == (
        "in use by 1 job: vision/train\n"
        "    fix: tpu job cancel dev TEAM JOB, or wait for their end; then again"
    )
    assert api.requests[1][1] == {"labelSelector": ["cloud.google.com/gke-nodepool=train-0"]}
    api.answers = [(200, dns), (200, nodes), (200, {"items": pods[2:]})]
    refuse(PODS, "p", "dev", ON, "train-0")
    api.answers = [(404, {"error": {"message": "Not found: the cluster"}})]
    refuse(PODS, "p", "dev", ON, "train-0")
    api.answers = [(200, dns), (503, {"error": {"message": "unavailable"}})]
    with pytest.raises(LivingError, match="it isn't known whether jobs live"):
        refuse(PODS, "p", "dev", ON, "train-0")

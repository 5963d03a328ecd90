"""Accepted changes hold later: a client that doesn't wait is refused. Here time stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cloud_front import NUMBER, OWNER, PROJECT, CloudFront

from rehearsal.cloud.core.world import Lags

ENABLED = tuple(f"{api}.googleapis.com" for api in ("iam", "logging", "monitoring"))
ALICE = "alice@example.com"
PROJECTS = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
ACCOUNTS = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
SERVICES = f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services"
ZONES = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/zones"


@pytest.fixture
def still(tmp_path: Path) -> Iterator[CloudFront]:
    front = CloudFront(
        tmp_path, enabled_apis=ENABLED, clock_rate=0.0,
        lags=Lags(grant_s=3.0, account_s=2.0, api_s=4.0, metric_s=600.0),
    )  # fmt: skip
    yield front
    front.close()


def test_a_grant_holds_when_it_has_spread(still: CloudFront) -> None:
    policy = still.request("POST", f"{PROJECTS}:getIamPolicy", {}).json
    policy["bindings"].append({"role": "roles/iam.serviceAccountAdmin", "members": [f"user:{ALICE}"]})
    assert still.request("POST", f"{PROJECTS}:setIamPolicy", {"policy": policy}).status == 200
    assert still.request("POST", f"{PROJECTS}:getIamPolicy", {}).json["bindings"] == policy["bindings"]
    assert still.request("GET", ACCOUNTS, token=still.token_of(ALICE)).status == 403
    still.jump(3)
    assert still.request("GET", ACCOUNTS, token=still.token_of(ALICE)).status == 200


def test_a_custom_roles_change_holds_when_it_has_spread(still: CloudFront) -> None:
    role = f"projects/{PROJECT}/roles/lister"
    for permissions in (["iam.serviceAccounts.list"], ["iam.serviceAccounts.get"]):
        still.iam.define_role(role, permissions)
        still.iam.create(f"projects/{PROJECT}", [{"role": role, "members": [f"user:{ALICE}"]}])
        assert still.request("GET", ACCOUNTS, token=still.token_of(ALICE)).status == 200
    still.jump(3)
    assert still.request("GET", ACCOUNTS, token=still.token_of(ALICE)).status == 403


def test_a_new_account_shows_when_it_has_spread(still: CloudFront) -> None:
    made = still.request("POST", ACCOUNTS, {"accountId": "tpu-hosts"})
    assert made.status == 200
    email, url = made.json["email"], f"{ACCOUNTS}/{made.json['email']}"

    def outcomes() -> list[int]:
        binding = {"role": "roles/logging.logWriter", "members": [f"serviceAccount:{email}"]}
        owner = {"role": "roles/owner", "members": [f"user:{OWNER}"]}
        return [
            still.request("GET", url).status,
            still.request("POST", f"{url}:getIamPolicy").status,
            still.request(
                "POST", f"{PROJECTS}:setIamPolicy", {"policy": {"bindings": [owner, binding]}}
            ).status,
        ]

    assert outcomes() == [404, 404, 400]
    assert still.request("POST", ACCOUNTS, {"accountId": "tpu-hosts"}).status == 409
    still.jump(1.9)
    assert outcomes() == [404, 404, 400]
    still.jump(0.2)
    assert outcomes() == [200, 200, 200]


@pytest.mark.parametrize("batch", [True, False])
def test_an_api_answers_when_its_operation_has_ended_and_that_has_spread(
    still: CloudFront, batch: bool
) -> None:
    ids = ["compute.googleapis.com", "tpu.googleapis.com"]
    if batch:
        started = still.request("POST", f"{SERVICES}:batchEnable", {"serviceIds": ids}).json
    else:
        started = still.request("POST", f"{SERVICES}/{ids[0]}:enable", {}).json
    still.jump(3.9)
    assert not still.request("GET", f"serviceusage.googleapis.com/v1/{started['name']}").json["done"]
    assert still.request("GET", f"{SERVICES}/{ids[0]}").json["state"] == "DISABLED"
    assert still.request("GET", ZONES).status == 403
    still.jump(0.1)
    still.until_done("serviceusage.googleapis.com/v1", started["name"])
    assert still.request("GET", f"{SERVICES}/{ids[0]}").json["state"] == "ENABLED"
    refused = still.request("GET", ZONES)
    words = f"Compute Engine API has not been used in project {NUMBER} before or it is disabled."
    assert (refused.status, refused.reason, refused.error[: len(words)]) == (
        403,
        "accessNotConfigured",
        words,
    )
    info = refused.json["error"]["details"][0]
    assert (info["reason"], info["metadata"]["service"]) == ("SERVICE_DISABLED", "compute.googleapis.com")
    still.jump(3.8)
    assert still.request("GET", ZONES).status == 403
    still.jump(0.2)
    assert still.request("GET", ZONES).status == 200


def test_monitoring_knows_a_new_metric_of_logs_when_that_has_spread(still: CloudFront) -> None:
    metrics = f"logging.googleapis.com/v2/projects/{PROJECT}/metrics"
    monitoring = f"monitoring.googleapis.com/v3/projects/{PROJECT}"
    kind = "logging.googleapis.com/user/boots"
    threshold = {
        "filter": f'metric.type="{kind}" AND resource.type="generic_node"',
        "comparison": "COMPARISON_GT",
        "duration": "0s",
        "aggregations": [{
            "alignmentPeriod": "300s", "perSeriesAligner": "ALIGN_SUM", "crossSeriesReducer": "REDUCE_SUM",
        }],
    }  # fmt: skip
    query = {
        "query": 'increase(logging_googleapis_com:user_boots{monitored_resource="generic_node"}[5m]) > 0'
    }

    def outcomes() -> list[int]:
        conditions = (
            {"conditionThreshold": threshold},
            {"conditionPrometheusQueryLanguage": query},
            {"conditionPrometheusQueryLanguage": {**query, "disableMetricValidation": True}},
        )
        policies = [
            {"displayName": "x", "combiner": "OR", "conditions": [{"displayName": "x", **item}]}
            for item in conditions
        ]
        replies = [still.request("POST", f"{monitoring}/alertPolicies", policy) for policy in policies]
        described = still.request("GET", f"{monitoring}/metricDescriptors/{kind}")
        return [reply.status for reply in (*replies, described)]

    assert outcomes() == [404, 400, 200, 404], "there is none"
    assert still.request("POST", metrics, {"name": "boots", "filter": "severity>=ERROR"}).status == 200
    still.jump(599)
    assert outcomes() == [404, 400, 200, 404]
    still.jump(1)
    assert outcomes() == [200, 200, 200, 200]
    assert still.request("DELETE", f"{metrics}/boots").status == 200
    assert outcomes() == [404, 400, 200, 404]

"""Cloud Monitoring at work: PromQL, thresholds, log-based metrics, audit entries, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cloud_front import NUMBER, PROJECT, CloudFront

from rehearsal.cloud.core.errors import ApiError, NotEmulatedError
from rehearsal.cloud.services.logging import counting
from rehearsal.cloud.services.monitoring.telemetry import promql, thresholds
from rehearsal.cloud.services.monitoring.telemetry.series import Points

P = f"projects/{PROJECT}"
HOST = {"location": "us-east5-b", "namespace": "train", "node_id": "a"}
TYPES = {"m:user_a": "m/user/a", "m:user_b": "m/user/b", "m:user_a_count": "m/user/a_count"}
_numbers = itertools.count()


def points(**values: list[float]) -> Points:
    """Points of metric `m/user/a` on nodes, one a minute until now (600 s)."""
    result = Points()
    for node, line in values.items():
        for number, value in enumerate(line):
            at = 600.0 - 60 * (len(line) - 1 - number)
            result.add("m/user/a", "generic_node", {"location": "z"}, {"node": node}, at, value)
    return result


def query(text: str, result: Points) -> dict[Any, float]:
    node, _ = promql.parse(text)
    return promql.vector(node, promql.Moment(result, 600.0, TYPES))


def of(name: str, window: str = "5m", more: str = "") -> str:
    return f'increase({name}{{monitored_resource="generic_node"{more}}}[{window}])'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"sum by (node) ({of('m:user_a')})", {"x": 6.0, "y": 30.0}),
        (f"sum by (node) ({of('m:user_a_sum', '2m')})", {"x": 5.0, "y": 20.0}),
        (
            f"sum by (node) ({of('m:user_a_sum')}) / sum by (node) ({of('m:user_a')}) > 0",
            {"x": 1.0, "y": 1.0},
        ),
        (f"sum by (node) ({of('m:user_a')}) > 10", {"y": 30.0}),
        (f"10 < sum by (node) ({of('m:user_a')})", {"y": 30.0}),
        (f"sum by (node) ({of('m:user_a')}) * 2 + 1 == 13", {"x": 13.0}),
        (f"sum({of('m:user_a')})", {"": 36.0}),
        (f"count(sum by (node) ({of('m:user_a')}) > 1)", {"": 2.0}),
        (f"max({of('m:user_a')}) - min({of('m:user_a')})", {"": 24.0}),
        (f"avg({of('m:user_a')})", {"": 18.0}),
        (f"sum by (node) ({of('m:user_a')}) > 1 unless sum by (node) ({of('m:user_a')}) > 10", {"x": 6.0}),
        (f"sum by (node) ({of('m:user_a')}) > 1 and sum by (node) ({of('m:user_a')}) > 10", {"y": 30.0}),
        (f"sum({of('m:user_b')}) or vector(0)", {"": 0.0}),
        (f"sum({of('m:user_a')}) or vector(0)", {"": 36.0}),
        (f"sum({of('m:user_b')})", {}),
        ("sum(" + of("m:user_a", more=', node="x"') + ")", {"": 6.0}),
        ("sum(" + of("m:user_a", more=', node!="x"') + ")", {"": 30.0}),
        ("sum(" + of("m:user_a", more=', node=~"x|z"') + ")", {"": 6.0}),
        ("sum(" + of("m:user_a", more=', location="elsewhere"') + ")", {}),
        ("(1 + 2) * 3 > vector(8)", {"": 8.0}),
    ],
)
def test_promql_is_evaluated(text: str, expected: dict[str, float]) -> None:
    result = query(text, points(x=[1.0, 2.0, 3.0], y=[10.0, 10.0, 10.0]))
    assert {dict(key).get("node", ""): value for key, value in result.items()} == expected


def test_a_distributions_count_is_of_its_points() -> None:
    result = points(x=[1.0, 2.0, 3.0])
    types = {"m:user_a": "m/user/a"}
    node, names = promql.parse(of("m:user_a_count"))
    assert names == {"m:user_a_count"}
    assert list(promql.vector(node, promql.Moment(result, 600.0, types)).values()) == [3.0]
    assert promql.resolved("m:user_a_count", TYPES) == ("m/user/a_count", ""), (
        "a metric of that name is itself"
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("rate(x[5m])", 501),
        ("x > 1", 501),
        ("sum without (node) (x)", 501),
        ("a_b > on(node) c", 501),
        ('increase(x{node="a"}[5m])', 400),
        ('increase(x{monitored_resource="generic_node"})', 400),
        ('increase(x{monitored_resource="generic_node"}[five])', 400),
        ("sum(", 400),
        ("1 > 2", 400),
        ("", 400),
        ("1 2", 400),
        ("vector(0) ; drop", 400),
    ],
)
def test_promql_that_is_none_or_is_not_emulated_is_refused(text: str, code: int) -> None:
    with pytest.raises(ApiError) as refused:
        query(text, points(x=[1.0]))
    assert refused.value.code == code
    assert isinstance(refused.value, NotEmulatedError) == (code == 501)


def condition(**changes: Any) -> dict[str, Any]:
    aggregation = {
        "alignmentPeriod": "300s",
        "perSeriesAligner": "ALIGN_SUM",
        "crossSeriesReducer": "REDUCE_SUM",
        "groupByFields": ["metric.label.node"],
        **changes.pop("aggregation", {}),
    }
    return {
        "filter": 'metric.type="m/user/a" AND resource.type="generic_node"',
        "comparison": "COMPARISON_GT",
        "duration": "0s",
        "thresholdValue": 5,
        "aggregations": [aggregation],
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"x": 6.0, "y": 30.0}),
        ({"thresholdValue": 6}, {"y": 30.0}),
        ({"comparison": "COMPARISON_LT", "thresholdValue": 7}, {"x": 6.0}),
        ({"aggregation": {"alignmentPeriod": "60s"}}, {"y": 10.0}),
        ({"aggregation": {"groupByFields": []}}, {"": 36.0}),
        ({"aggregation": {"groupByFields": [], "crossSeriesReducer": "REDUCE_MAX"}}, {"": 30.0}),
        ({"aggregation": {"perSeriesAligner": "ALIGN_MEAN"}}, {"y": 10.0}),
        (
            {"filter": 'metric.type="m/user/a" resource.type="generic_node" metric.label.node="x"'},
            {"x": 6.0},
        ),
        ({"filter": 'metric.type="m/user/a" AND resource.type="gce_instance"'}, {}),
    ],
)
def test_thresholds_are_evaluated(changes: dict[str, Any], expected: dict[str, float]) -> None:
    item = condition(**changes)
    thresholds.check(item)
    evaluate = thresholds.evaluate(item, points(x=[1.0, 2.0, 3.0], y=[10.0, 10.0, 10.0]), 600.0)
    assert {dict(key).get("node", ""): value for key, value in evaluate.items()} == expected


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"filter": 'metric.type="m/user/a"'}, 400),
        ({"filter": 'metric.type="a" AND resource.type="b" OR metric.label.x="y"'}, 501),
        ({"filter": 'metric.type=starts_with("a") AND resource.type="b"'}, 501),
        ({"comparison": "COMPARISON_GREATER_THAN"}, 400),
        ({"aggregations": []}, 501),
        ({"aggregation": {"perSeriesAligner": "ALIGN_RATE"}}, 501),
        ({"aggregation": {"crossSeriesReducer": "REDUCE_PERCENTILE_99"}}, 501),
        ({"aggregation": {"alignmentPeriod": "30s"}}, 400),
        ({"denominatorFilter": "x"}, 501),
    ],
)
def test_thresholds_that_are_none_or_are_not_emulated_are_refused(changes: dict[str, Any], code: int) -> None:
    with pytest.raises(ApiError) as refused:
        thresholds.check(condition(**changes))
    assert refused.value.code == code


ENTRY = {"resource": {"type": "global", "labels": {}}, "labels": {"node": "n"}, "severity": "ERROR"}


@pytest.mark.parametrize(
    ("extractor", "expected"),
    [
        ("EXTRACT(labels.node)", "n"),
        ("EXTRACT(jsonPayload.step)", "7"),
        ("EXTRACT(jsonPayload.other)", None),
        ('REGEXP_EXTRACT(textPayload, "stage ([a-z-]+)")', "python"),
        ('REGEXP_EXTRACT(textPayload, "no ([a-z]+) there")', None),
    ],
)
def test_extractors_find_what_they_name(extractor: str, expected: str | None) -> None:
    entry = {**ENTRY, "jsonPayload": {"step": 7}, "textPayload": "boot failed in stage python"}
    assert counting.extract(extractor, entry) == expected


def test_an_entry_without_the_value_is_not_counted() -> None:
    metric = {"filter": "severity>=ERROR", "valueExtractor": "EXTRACT(jsonPayload.step)"}
    assert counting.point(metric, {**ENTRY, "jsonPayload": {"step": "7.5"}}) == ({}, 7.5)
    assert counting.point(metric, {**ENTRY, "jsonPayload": {"step": "seven"}}) is None
    assert counting.point(metric, {**ENTRY, "severity": "INFO", "jsonPayload": {"step": 7}}) is None
    assert counting.point({**metric, "disabled": True}, {**ENTRY, "jsonPayload": {"step": 7}}) is None


def posted(cloud: CloudFront, path: str, body: Any) -> Any:
    reply = cloud.request("POST", path, body)
    assert reply.status == 200, reply.body
    return reply.json


def watched(cloud: CloudFront, channels: list[str]) -> str:
    """A metric of entries of a node of its own, and a policy on it; the node."""
    node = f"node-{next(_numbers)}"
    name = f"lines-{node}"
    metric = {"name": name, "filter": f'textPayload:"oops" AND labels.node="{node}"'}
    posted(cloud, f"logging.googleapis.com/v2/{P}/metrics", metric)
    item = condition(
        filter=f'metric.type="logging.googleapis.com/user/{name}" AND resource.type="generic_node"',
        thresholdValue=1, aggregation={"groupByFields": ["resource.label.node_id"]},
    )  # fmt: skip
    policy = {
        "displayName": node,
        "combiner": "OR",
        "severity": "ERROR",
        "notificationChannels": channels,
        "conditions": [{"displayName": "oops", "conditionThreshold": item}],
    }
    posted(cloud, f"monitoring.googleapis.com/v3/{P}/alertPolicies", policy)
    return node


def write(cloud: CloudFront, node: str, times: int) -> None:
    entries = [{"textPayload": "oops"} for _ in range(times)]
    resource = {"type": "generic_node", "labels": HOST}
    body = {"logName": f"{P}/logs/x", "resource": resource, "labels": {"node": node}, "entries": entries}
    posted(cloud, "logging.googleapis.com/v2/entries:write", body)


def judged(cloud: CloudFront, node: str) -> list[Any]:
    async def evaluate() -> None:
        cloud.cloud.telemetry.evaluate()

    cloud.call(evaluate())
    return [
        incident for incident in cloud.cloud.telemetry.incidents if incident.policy["displayName"] == node
    ]


def test_an_incident_opens_once_and_closes(cloud: CloudFront) -> None:
    with cloud.stopped_clock():
        node = watched(cloud, [])
        write(cloud, node, 1)
        assert judged(cloud, node) == []
        write(cloud, node, 1)
        (incident,) = judged(cloud, node)
        assert (incident.labels, incident.value, incident.closed_s) == ((("node_id", "a"),), 2.0, 0.0)
        assert judged(cloud, node) == [incident], "not again"
    cloud.let_pass(400)
    assert judged(cloud, node)[0].closed_s
    write(cloud, node, 2)
    assert len(judged(cloud, node)) == 2


def test_pubsub_is_published_to_where_googles_agent_may(cloud: CloudFront) -> None:
    topic = f"{P}/topics/alerts-{next(_numbers)}"
    assert cloud.request("PUT", f"pubsub.googleapis.com/v1/{topic}", {}).status == 200
    channel = {"type": "pubsub", "displayName": "bus", "labels": {"topic": topic}}
    made = posted(cloud, f"monitoring.googleapis.com/v3/{P}/notificationChannels", channel)
    node = watched(cloud, [made["name"]])
    write(cloud, node, 2)
    judged(cloud, node)
    agent = f"service-{NUMBER}@gcp-sa-monitoring-notification.iam.gserviceaccount.com"
    refused = next(
        notification for notification in cloud.cloud.telemetry.sent if notification.channel == made["name"]
    )
    assert refused.failed.startswith(f"serviceAccount:{agent} may not publish to {topic}")
    binding = {"role": "roles/pubsub.publisher", "members": [f"serviceAccount:{agent}"]}
    posted(cloud, f"pubsub.googleapis.com/v1/{topic}:setIamPolicy", {"policy": {"bindings": [binding]}})
    cloud.let_pass(400)
    judged(cloud, node)
    closing = [
        notification for notification in cloud.cloud.telemetry.sent if notification.channel == made["name"]
    ][-1]
    assert (closing.failed, closing.message["incident"]["state"]) == ("", "closed")


def test_a_policy_on_a_metric_that_is_not_there_is_refused(cloud: CloudFront) -> None:
    inner = {"query": of("m:nothing") + " > 1", "duration": "0s"}
    policy = {
        "displayName": "x",
        "combiner": "OR",
        "conditions": [{"displayName": "x", "conditionPrometheusQueryLanguage": inner}],
    }
    path = f"monitoring.googleapis.com/v3/{P}/alertPolicies"
    reply = cloud.request("POST", path, policy)
    assert (reply.status, reply.error) == (400, "The metric m:nothing doesn't exist, or has no data yet.")
    inner["disableMetricValidation"] = True  # type: ignore[assignment]
    made = posted(cloud, path, policy)
    assert cloud.request("DELETE", f"monitoring.googleapis.com/v3/{made['name']}").status == 200


def test_a_dashboard_whose_query_is_no_promql_is_refused(cloud: CloudFront) -> None:
    chart = {"dataSets": [{"timeSeriesQuery": {"prometheusQuery": "sum("}}]}
    tile = {"width": 4, "height": 4, "widget": {"xyChart": chart}}
    body = {"displayName": "x", "mosaicLayout": {"columns": 12, "tiles": [tile]}}
    reply = cloud.request("POST", f"monitoring.googleapis.com/v1/{P}/dashboards", body)
    assert (reply.status, reply.error.partition(":")[0]) == (400, "Invalid PromQL")

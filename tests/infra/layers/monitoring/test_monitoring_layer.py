"""Declarations of the monitoring layer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra.core import watched
from infra.engine.registry import layers
from infra.errors import SettingsError
from infra.layers.monitoring import alerts, commands, dashboards, documentation, metrics
from infra.layers.monitoring.layer import LAYER
from infra.layers.monitoring.widgets import COLUMNS, Chart, Dashboard, Line, Score, WidgetRow
from infra.settings.schema import Settings
from rehearsal.cloud.door import discovery
from rehearsal.cloud.services.logging import counting
from rehearsal.cloud.services.monitoring.telemetry import promql, thresholds
from tests.infra.declared import EVERYTHING, OFF, declared
from tests.infra.recording import BASE, Recording, parsed, run

METRICS = metrics.of(layers())
GOLDEN = Path(__file__).parent / "dashboards"
ALERT = "gcp:monitoring/alertPolicy:AlertPolicy"


def settings(**changes: Any) -> Settings:
    layers_on = {**OFF["monitoring"], **OFF["pipeline"]}
    given = {**BASE, **layers_on, **{f"monitoring:{key}": value for key, value in changes.items()}}
    return parsed(given)


def up(**changes: Any) -> Recording:
    given = {**OFF["monitoring"], **{f"monitoring:{key}": value for key, value in changes.items()}}
    return run("monitoring", given, preview=False)


@pytest.fixture(scope="module")
def everything() -> Recording:
    return declared("monitoring")


def test_each_alert_says_how_bad_it_is_what_to_do_and_to_whom(everything: Recording) -> None:
    policies = everything.of(ALERT)
    assert [policy.name for policy in policies] == sorted(alerts.of(layers()))
    assert len(policies) >= 12
    for item in policies:
        about = item.inputs["documentation"]
        assert item.inputs["severity"] in ("CRITICAL", "ERROR", "WARNING")
        assert about["content"].startswith(f"# {item.name}\n")
        assert len(about["content"].encode()) <= documentation.MOST_BYTES
        assert about["links"] == [
            {"displayName": "runbook", "url": f"https://example.com/runbooks/{item.name}.md"}
        ]
        assert len(item.inputs["notificationChannels"]) == 4
        assert 1 <= len(item.inputs["conditions"]) <= 6
        assert (item.inputs["enabled"], item.inputs["combiner"]) == (True, "OR")
        assert item.inputs["alertStrategy"] == {"autoClose": "86400s"}
        before = {urn.rpartition("::")[2] for urn in item.options["dependencies"]}
        assert {metric.name for metric in METRICS} <= before, "Google refuses what isn't there yet"
        assert item.inputs["userLabels"] == {"environment": "dev", "layer": "monitoring", "alert": item.name}


def test_conditions_are_thresholds_and_promql_that_can_be_evaluated(everything: Recording) -> None:
    kinds = set()
    own = {promql.promql_name(watched.metric_type(metric.name, settings())) for metric in METRICS}
    for resource in everything.of(ALERT):
        for condition in resource.inputs["conditions"]:
            (kind,) = condition.keys() - {"displayName"}
            kinds.add(kind)
            if kind == "conditionThreshold":
                thresholds.check(condition[kind])
                continue
            query = condition[kind]
            assert query["disableMetricValidation"] is True
            _, names = promql.parse(query["query"])
            assert {name.removesuffix("_sum").removesuffix("_count") for name in names} <= own
    assert kinds == {"conditionThreshold", "conditionPrometheusQueryLanguage"}


def test_chips_are_idle_that_were_up_in_nearly_all_of_30_minutes_without_a_job() -> None:
    (condition,) = (
        alert for name, alert in alerts.of(())["chips-idle"].conditions.items() if name == "no job runs"
    )
    (arguments,) = condition.arguments(settings(), 5).values()
    up, running = arguments["query"].split(" unless ")
    assert re.fullmatch(r"sum by \(\w+\) \(increase\(\S+chips_count\{.*\}\[30m\]\)\) > 25", up)
    assert re.fullmatch(r"sum by \(\w+\) \(increase\(\S+running\{.*\}\[30m\]\)\) > 0", running)


def test_thresholds_are_compared_as_the_page_says() -> None:
    for alert in alerts.of(layers()).values():
        texts = [str(condition.arguments(settings(), 7.5)) for condition in alert.conditions.values()]
        own = [text for text in texts if re.search(r"7\.5|0\.075|\[450s\]", text)]
        assert own, "a condition has the threshold"
        assert all((" < " in text) == alert.below for text in own), alert.name


def test_metrics_have_few_labels_and_filters_that_can_be_evaluated(everything: Recording) -> None:
    counters = everything.of("gcp:logging/metric:Metric")
    assert len(counters) == len(METRICS)
    for item in counters:
        counting.check(item.inputs)
        assert item.inputs["name"] == f"tpu-dev-{item.name}"
        assert len(item.inputs.get("labelExtractors", ())) <= 2
        described = item.inputs["metricDescriptor"]
        assert (described["valueType"] == "DISTRIBUTION") == ("valueExtractor" in item.inputs)
        assert ("bucketOptions" in item.inputs) == ("valueExtractor" in item.inputs)


def test_access_is_watched_on_every_bucket_that_is_declared() -> None:
    buckets = {
        resource.inputs["name"]
        for layer in ("storage", "gke", "pipeline")
        for resource in declared(layer).of("gcp:storage/bucket:Bucket")
    }
    assert len(buckets) == 7
    known = parsed({**BASE, **EVERYTHING})
    for name in ("bucket-public", "bucket-access-changed"):
        pattern = re.search(r'bucket_name=~"\^\(([^)]+)\)\$"', metrics.filter_of(metrics.OF[name], known))
        assert pattern
        assert {*pattern[1].split("|")} == buckets


GRANTED: list[tuple[str, str, str, bool]] = [
    ("my-project-raw", "allUsers", "ADD", True),
    ("my-project-raw", "allAuthenticatedUsers", "ADD", True),
    ("my-project-raw", "user:allUsers@example.com", "ADD", False),
    ("my-project-raw", "allUsers", "REMOVE", False),
    ("another-my-project-raw", "allUsers", "ADD", False),
    ("my-project-raw-of-others", "allUsers", "ADD", False),
]


@pytest.mark.parametrize(("bucket", "member", "action", "counted"), GRANTED)
def test_a_grant_to_everybody_is_counted_on_our_buckets_and_no_others(
    everything: Recording, bucket: str, member: str, action: str, counted: bool
) -> None:
    granted = {"action": action, "role": "roles/storage.objectViewer", "member": member}
    entry = {
        "resource": {"type": watched.BUCKET, "labels": {"bucket_name": bucket}},
        "protoPayload": {
            "serviceName": "storage.googleapis.com", "methodName": "storage.setIamPermissions",
            "serviceData": {"policyDelta": {"bindingDeltas": [granted]}},
        },
    }  # fmt: skip
    body = everything.named("gcp:logging/metric:Metric", "bucket-public").inputs
    assert counting.point(body, entry) == (({"bucket": bucket}, 1.0) if counted else None)


HOSTS = {"type": watched.HOST}
NODES = {"type": watched.AUDIT}
FUNCTIONS = {"type": watched.FUNCTION, "labels": {"service_name": "tpu-pipeline"}}
SWEEPS = {"type": watched.SCHEDULE, "labels": {"job_id": "tpu-pipeline"}}
TERMINATED = {"serviceName": "tpu.googleapis.com", "methodName": "tpu.nodes.terminate"}
LOG = "projects/my-project/logs/tpu-host"
SAVED = {"logName": LOG, "jsonPayload": {"event": "save"}}
RUN_FAILED = {"severity": "ERROR", "jsonPayload": {"event": "pipeline_run", "outcome": "quota"}}


@pytest.mark.parametrize(
    ("metric", "entry", "counted"),
    [
        ("checkpoints", {"resource": HOSTS, "labels": {"bucket": "my-project-checkpoints"}, **SAVED}, True),
        ("checkpoints", {"resource": HOSTS, "labels": {"bucket": "my-project-eu"}, **SAVED}, False),
        ("checkpoints", {"resource": HOSTS, "labels": {"node": "booted-before"}, **SAVED}, True),
        ("terminations", {"resource": NODES, "zone": "us-east5-b"}, True),
        ("terminations", {"resource": NODES, "zone": "europe-west4-a"}, False),
        ("runs-failed", {"resource": FUNCTIONS, **RUN_FAILED}, True),
        (
            "runs-failed",
            {"resource": {**FUNCTIONS, "labels": {"service_name": "tpu-pipeline-eu"}}, **RUN_FAILED},
            False,
        ),
        ("sweeps-failed", {"resource": SWEEPS, "severity": "ERROR"}, True),
        (
            "sweeps-failed",
            {"resource": {**SWEEPS, "labels": {"job_id": "tpu-pipeline-eu"}}, "severity": "ERROR"},
            False,
        ),
    ],
)
def test_entries_of_another_environment_of_the_project_are_not_counted(
    everything: Recording, metric: str, entry: dict[str, Any], counted: bool
) -> None:
    if zone := entry.get("zone"):
        entry["protoPayload"] = {
            **TERMINATED,
            "resourceName": f"projects/my-project/locations/{zone}/nodes/n",
        }
    body = everything.named("gcp:logging/metric:Metric", metric).inputs
    assert (counting.point(body, entry) is not None) == counted


def test_where_slices_may_be_in_any_region_nodes_of_all_are_counted() -> None:
    known = parsed({**BASE, **OFF["monitoring"], "storage:allowCrossRegion": True})
    assert "locations" not in metrics.filter_of(metrics.OF["terminations"], known)


def test_no_two_layers_declare_a_metric_or_an_alert_of_one_name() -> None:
    names = [metric.name for metric in METRICS]
    assert len({*names}) == len(names)
    declared_alerts = [alert for layer in layers() for alert in layer.hooks.alerts]
    assert len(alerts.of(layers())) == len(alerts.ALERTS) + len(declared_alerts)


def test_an_alert_can_be_changed_and_left_out() -> None:
    changed = up(
        channels=[
            {"name": "oncall", "email": "oncall@example.com"},
            {"name": "team", "email": "team@example.com"},
        ],
        alerts=[
            {"name": "boot-failed", "enabled": False},
            {"name": "run-stalled", "threshold": 600, "channels": ["team"]},
            {"name": "job-failing", "threshold": 0},
        ],
    )
    names = {resource.name for resource in changed.of(ALERT)}
    assert names == alerts.of(()).keys() - {"boot-failed"}, "the pipeline is off, and so are its alerts"
    (failing,) = changed.named(ALERT, "job-failing").inputs["conditions"]
    assert failing["conditionThreshold"]["thresholdValue"] == 0
    stalled = changed.named(ALERT, "run-stalled").inputs
    assert stalled["notificationChannels"] == ["team-id"]
    assert stalled["conditions"][0]["conditionPrometheusQueryLanguage"]["query"].endswith(" > 600")


def test_without_alerts_there_are_metrics_and_dashboards() -> None:
    done = up(channels=[], alerting=False)
    assert done.of(ALERT) == []
    assert len(done.of("gcp:monitoring/dashboard:Dashboard")) == 3
    assert up(dashboards=False).of("gcp:monitoring/dashboard:Dashboard") == []


def test_spend_counts_each_zone_at_its_dearest_price() -> None:
    slices: list[dict[str, Any]] = [
        {"name": "a", "acceleratorType": "v6e-1", "zones": ["us-east5-a"], "spot": True},
        {"name": "b", "acceleratorType": "v6e-1", "zones": ["us-east5-b"], "spot": True},
        {"name": "c", "acceleratorType": "v6e-1", "zones": ["us-east5-b"]},
    ]
    moves = {**slices[2], "name": "d", "count": 1, "fallbackZones": ["us-east5-a"]}
    for more, dearest in (([], "1.4033"), ([moves], "2.7")):
        given = {**BASE, **OFF["monitoring"], "tpu:slices": [*slices, *more]}
        text = alerts.spend(parsed(given))
        result = re.findall(r'zone="([a-z0-9-]+)"\}\[10m\]\)\)\) \* ([\d.]+)', text)
        assert result == [("us-east5-a", dearest), ("us-east5-b", "2.7")]
        assert text.count(" or vector(0))") == 2, "a zone without nodes leaves the other's sum"
    lone = {"name": "e", "acceleratorType": "v6e-1", "zones": ["us-central1-b"], "spot": True}
    given = {**BASE, **OFF["monitoring"], "storage:allowCrossRegion": True, "tpu:slices": [lone]}
    text = alerts.spend(parsed(given))
    assert 'zone="us-central1-b"' in text
    assert " * 2.7 " in text, "a Spot price that is unknown is at most that on demand"


def test_channels_are_of_the_kinds_that_google_notifies(everything: Recording) -> None:
    channels = everything.of("gcp:monitoring/notificationChannel:NotificationChannel")
    own = [channel for channel in channels if channel.name != "theirs"]
    assert all(item.inputs["userLabels"] == {"environment": "dev", "layer": "monitoring"} for item in own)
    made = {item.name: (item.inputs["type"], item.inputs["labels"]) for item in own}
    assert made == {
        "oncall": ("email", {"email_address": "oncall@example.com"}),
        "bus": ("pubsub", {"topic": "tpu-alerts-id"}),
        "hook": ("webhook_tokenauth", {"url": "https://hooks.example.com/tpu"}),
    }


@pytest.mark.parametrize("budget", [True, False])
def test_a_channel_that_publishes_may_be_published_to(everything: Recording, budget: bool) -> None:
    done = everything if budget else up(channels=[{"name": "bus", "topic": "tpu-alerts"}])
    grant = done.only("gcp:pubsub/topicIAMMember:TopicIAMMember")
    assert grant.inputs["role"] == "roles/pubsub.publisher"
    assert grant.inputs["member"] == (
        "serviceAccount:service-123456789012@gcp-sa-monitoring-notification.iam.gserviceaccount.com"
    )
    needed = {urn.rpartition("::")[2] for urn in grant.options["dependencies"]}
    assert "bus" in needed, "the agent is there once there is a channel"


def test_the_budget_notifies_at_half_nine_tenths_and_all_of_it(everything: Recording) -> None:
    inputs = everything.only("gcp:billing/budget:Budget").inputs
    assert [(item["spendBasis"], item["thresholdPercent"]) for item in inputs["thresholdRules"]] == [
        ("CURRENT_SPEND", 0.5),
        ("CURRENT_SPEND", 0.9),
        ("CURRENT_SPEND", 1.0),
        ("FORECASTED_SPEND", 1.0),
    ]
    assert inputs["budgetFilter"] == {
        "projects": ["projects/123456789012"],
        "calendarPeriod": "MONTH",
        "creditTypesTreatment": "INCLUDE_ALL_CREDITS",
    }
    assert inputs["allUpdatesRule"] == {
        "disableDefaultIamRecipients": False,
        "monitoringNotificationChannels": ["oncall-id"],  # it takes no other kind
        "pubsubTopic": "tpu-alerts-id",
        "schemaVersion": "1.0",
    }
    assert inputs["amount"]["specifiedAmount"] == {"units": "1000"}


def test_requests_about_a_budget_count_for_the_project(everything: Recording) -> None:
    inputs = everything.only("pulumi:providers:gcp").inputs
    assert (inputs["billingProject"], inputs["userProjectOverride"]) == (inputs["project"], "true")
    without = up(channels=[{"name": "oncall", "email": "oncall@example.com"}])
    assert not {"billingProject", "userProjectOverride"} & without.only("pulumi:providers:gcp").inputs.keys()


@pytest.mark.parametrize(
    "message",
    [
        "error creating Budget: googleapi: Error 403: The caller does not have permission",
        "Error 403: Permission 'billing.budgets.create' denied on resource '//billing.googleapis.com/…'",
    ],
)
def test_a_refused_budget_is_told_with_the_grant_on_the_billing_account(message: str) -> None:
    given = settings(billingAccount="012345-6789AB-CDEF01", budgetPerMonth=1000)
    grant = LAYER.hooks.missing_grant(given, message)
    assert "gcloud billing accounts add-iam-policy-binding 012345-6789AB-CDEF01" in grant
    other = "Error 403: Permission 'logging.logMetrics.create' denied"
    assert LAYER.hooks.missing_grant(given, other) == ""


def test_a_budget_names_the_channels_with_an_address() -> None:
    many = [{"name": f"team{n}", "email": f"team{n}@example.com"} for n in range(5)]
    given = {"billingAccount": "012345-6789AB-CDEF01", "budgetPerMonth": 1000}
    inputs = up(channels=many, **given).only("gcp:billing/budget:Budget").inputs
    assert inputs["allUpdatesRule"]["monitoringNotificationChannels"] == [f"team{n}-id" for n in range(5)]
    bare = up(channels=[{"name": "hook", "webhook": "https://hooks.example.com/tpu"}], **given)
    assert "allUpdatesRule" not in bare.only("gcp:billing/budget:Budget").inputs


@pytest.mark.parametrize("name", ["fleet", "run", "pipeline"])
def test_dashboards_are_those_of_the_golden_files(name: str) -> None:
    """To accept a change: python -m tests.infra.layers.monitoring.test_monitoring_layer."""
    content = dashboards.dashboards(settings())[name].content()
    assert content == json.loads((GOLDEN / f"{name}.json").read_text())


def wrong(content: dict[str, Any]) -> list[str]:
    result: list[Any] = []
    discovery.document("monitoring", "v1").schemas.compile({"$ref": "Dashboard"})(content, "", result)
    return [item.description for item in result]


@pytest.mark.parametrize("name", ["fleet", "run", "pipeline"])
def test_dashboards_are_what_the_api_describes_and_gives_back(name: str) -> None:
    content = dashboards.dashboards(settings())[name].content()
    assert wrong(content) == []
    assert wrong({**content, "mosaicLayuot": {}})
    tiles = content["mosaicLayout"]["tiles"]
    taken = [
        (x, y)
        for tile in tiles
        for x in range(tile.get("xPos", 0), tile.get("xPos", 0) + tile["width"])
        for y in range(tile.get("yPos", 0), tile.get("yPos", 0) + tile["height"])
    ]
    assert len(taken) == len(set(taken)), "none lies on another"
    assert max(x for x, _ in taken) < COLUMNS
    assert "[]" not in json.dumps(content)
    assert all(tile.get("xPos", 1) and tile.get("yPos", 1) for tile in tiles), "zeros would be a change"


def test_a_row_that_does_not_divide_is_refused() -> None:
    chart = Chart("x", (Line("vector(1)", "x"),))
    with pytest.raises(ValueError, match="5 widgets in a row of 48 columns"):
        Dashboard("d", (WidgetRow(4, (chart,) * 5),)).content()
    assert Score("x", "vector(1)").widget()["scorecard"]["timeSeriesQuery"]["unitOverride"] == "1"


def test_a_dashboards_address_names_its_project() -> None:
    result = commands.dashboard_url("projects/p/dashboards/1-2", "p")
    assert result == "https://console.cloud.google.com/monitoring/dashboards/builder/1-2?project=p"


def test_an_alert_without_a_page_is_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(documentation, "RUNBOOKS", documentation.PROGRAM / "docs" / "nowhere")
    with pytest.raises(Exception, match="the alert boot-failed has no page\n    fix: write docs/nowhere"):
        documentation.page("boot-failed")


@pytest.mark.parametrize(("changes", "message"), [
    ({"channels": []}, "an alert needs a channel"),
    ({"channels": [{"name": "hook", "webhook": "https://me:pw@hooks.example.com/tpu"}]}, "without user"),
    ({"billingAccount": "012345-6789AB", "budgetPerMonth": 1000}, "a billing account's id"),
])  # fmt: skip
def test_settings_are_refused_before_anything_is_asked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(**changes)


def write_golden() -> None:
    """Return the dashboards as they are now."""
    GOLDEN.mkdir(exist_ok=True)
    for name, item in dashboards.dashboards(settings()).items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(item.content(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_golden()

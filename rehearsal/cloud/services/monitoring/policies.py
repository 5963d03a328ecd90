"""Cloud Monitoring: alert policies, channels, and incidents, which telemetry/ opens.

https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies
"""

from __future__ import annotations

from rehearsal.cloud.collections import KEEP, Change, Collection, Entry, Reference, Verb
from rehearsal.cloud.collections.checks import every, not_emulated
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request, not_found

_CHANNELS = "monitoring.projects.notificationChannels"
_CONDITIONS = {
    "conditionThreshold", "conditionAbsent", "conditionMatchedLog", "conditionMonitoringQueryLanguage",
    "conditionPrometheusQueryLanguage", "conditionSql",
}  # fmt: skip
# https://cloud.google.com/monitoring/alerts/using-channels-api#api-create: the label that a type must have.
_LABELS = {
    "email": "email_address", "sms": "number", "slack": "channel_name", "pubsub": "topic",
    "pagerduty": "service_key", "webhook_basicauth": "url", "webhook_tokenauth": "url",
}  # fmt: skip


def _recorded(change: Change) -> None:
    """Record the caller and the time of a change."""
    record = {"mutateTime": change.world.clock.rfc3339()}
    if "mutationRecords" in change.shape.fields:
        change.body["mutationRecords"] = [*change.old.get("mutationRecords", ()), record]
    else:
        record["mutatedBy"] = change.call.principal
        change.body["mutationRecord"] = record
    change.body.setdefault("creationRecord", record)


def _policy(change: Change) -> None:
    conditions = change.body.get("conditions") or []
    if not change.body.get("displayName") or not 1 <= len(conditions) <= 6:
        raise bad_request("Field alert_policy must have a display_name and between 1 and 6 conditions.")
    if "combiner" not in change.body:
        raise bad_request("Field alert_policy.combiner had an invalid value: it must be specified.")
    for number, condition in enumerate(conditions, 1):
        kinds = _CONDITIONS & condition.keys()
        if len(kinds) != 1 or not condition.get("displayName"):
            raise bad_request(
                f"Field alert_policy.conditions[{number - 1}] must have a display_name and one type."
            )
        inner = condition[kinds.pop()]
        if "comparison" in inner and "metric.type" not in inner.get("filter", ""):
            raise bad_request(
                f'The supplied filter does not specify a restriction on "metric.type": {inner["filter"]}'
            )
        condition.setdefault("name", f"{change.name}/conditions/{int(change.id) + number}")
        change.runtime.telemetry.check(condition)
    _recorded(change)


def _channel(change: Change) -> None:
    kind, labels = change.body.get("type"), change.body.get("labels", {})
    if kind not in _LABELS:
        raise bad_request(f"Field notification_channel.type had an invalid value of '{kind}'.")
    if not labels.get(_LABELS[kind]):
        raise bad_request(f"Field notification_channel.labels must have the label '{_LABELS[kind]}'.")
    if kind == "pubsub":
        change.finish.append(lambda: change.resources.iam.make_agents("monitoring", "channel"))
    _recorded(change)


def _unused(change: Change) -> None:
    users = change.resources.users(change.name)
    if users and not change.call.query.get("force"):
        text = f"Cannot delete notification channel {change.name}: it is used by {', '.join(users)}."
        raise ApiError(400, "FAILED_PRECONDITION", text, reason="failedPrecondition")
    for user in users:
        body = change.world.directory[user]
        body["notificationChannels"] = [name for name in body["notificationChannels"] if name != change.name]


def _alerts(change: Change) -> JsonObject:
    """alerts.list: incidents, the newest first."""
    if unknown := change.call.query.keys() & {"filter", "orderBy", "pageToken"}:
        raise NotEmulatedError(f"{', '.join(sorted(unknown))} of alerts.list")
    alerts = change.runtime.telemetry.alerts()
    return {"alerts": alerts, "totalSize": len(alerts)} if alerts else {}


def _alert(change: Change) -> JsonObject:
    for alert in change.runtime.telemetry.alerts():
        if alert["name"] == change.name:
            return alert
    raise not_found(change.name)


def _descriptors(change: Change) -> JsonObject:
    """metricDescriptors.list: of the metrics of logs."""
    if unknown := change.call.query.keys() & {"filter", "activeOnly", "pageToken"}:
        raise NotEmulatedError(f"{', '.join(sorted(unknown))} of metricDescriptors.list")
    return {"metricDescriptors": list(change.runtime.telemetry.descriptors().values())}


def _descriptor(change: Change) -> JsonObject:
    name = change.call.path["name"]
    for kind, descriptor in change.runtime.telemetry.descriptors().items():
        if name.endswith(f"/metricDescriptors/{kind}"):
            return descriptor
    raise not_found(name)


ENTRY = Entry(
    "monitoring",
    ("v3",),
    (
        Collection(
            "monitoring.projects.alerts",
            verbs={"list": Verb(_alerts, exists=False), "get": Verb(_alert, exists=False)},
        ),
        Collection(
            "monitoring.projects.metricDescriptors",
            omit=("create", "delete"),
            verbs={"list": Verb(_descriptors, exists=False), "get": Verb(_descriptor, exists=False)},
        ),
        Collection(
            "monitoring.projects.alertPolicies",
            defaults={"enabled": True},
            references=(Reference("notificationChannels", (_CHANNELS,), on_delete=KEEP),),
            check=_policy,
        ),
        Collection(
            _CHANNELS,
            defaults={"enabled": True},
            immutable=("type",),
            check=every(not_emulated("sensitiveLabels"), _channel),
            deleting=_unused,
        ),
    ),
    package="google.monitoring.v3",
)

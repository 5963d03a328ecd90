"""Monitoring layer: metrics of the logs, alerts, who is notified, dashboards, and a budget."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from infra.core.layer import Hooks, Layer, deferred
from infra.core.lookup import Lookup
from infra.core.providers import gcp
from infra.core.watched import full_name
from infra.google.failures import Kind, classify
from infra.google.measured import UNKNOWN
from infra.google.role import Role
from infra.layers.monitoring import metrics
from infra.layers.monitoring.outputs import MonitoringOutputs
from infra.layers.monitoring.rules import RULES, alert, channel, made
from infra.layers.monitoring.settings import AlertSettings, ChannelSettings, MonitoringSettings
from infra.layers.storage.settings import StorageSettings
from infra.prices.row import PriceRow, Rate, rate, row
from infra.settings.schema import Settings

if TYPE_CHECKING:
    import pulumi


def _gcp(settings: Settings, layer: str) -> pulumi.ProviderResource:
    """Return the provider, whose requests about a budget, which is of no project, count for this one."""
    return gcp(settings, layer, charged=settings[MonitoringSettings].billing_account is not None)


def _topics(settings: Settings) -> list[str]:
    return [channel.topic for channel in settings[MonitoringSettings].channels if channel.topic]


def _services(settings: Settings) -> tuple[str, ...]:
    charged = settings[MonitoringSettings].billing_account
    budget = ("billingbudgets.googleapis.com", "cloudbilling.googleapis.com") if charged else ()
    topics = ("pubsub.googleapis.com",) if _topics(settings) else ()
    return ("logging.googleapis.com", "monitoring.googleapis.com", *topics, *budget)


def _at_google(settings: Settings) -> dict[str, str]:
    """Return the resources whose names the settings determine; Google names all others."""
    names = [full_name(metric.name, settings) for metric in metrics.of(settings.layers_on)]
    topics = [f"projects/{settings.project}/topics/{topic}" for topic in _topics(settings)]
    log = f"https://logging.googleapis.com/v2/projects/{settings.project}/metrics"
    return {
        **{name: f"{log}/{name}" for name in names},
        **{topic: f"https://pubsub.googleapis.com/v1/{topic}" for topic in topics},
    }


def _prices(settings: Settings) -> Iterable[PriceRow]:
    if count := sum(len(alert.conditions) for alert, _, _ in made(settings)):
        yield row(f"{count} conditions of alerts", "global", ("monitoring.condition", count))


def _rates(settings: Settings) -> Iterable[Rate]:
    """Dashboards, e-mails, webhooks and budgets are free; the logs that metrics count are storage's."""
    used = ["monitoring.metrics"]
    used += ["monitoring.series"] if made(settings) else []
    used += ["pubsub"] if _topics(settings) else []
    return [rate(id_, settings[StorageSettings].location) for id_ in used]


_ROLES = (
    Role(
        "roles/logging.configWriter", "create log-based metrics",
        ("logging.logMetrics.create", "logging.logMetrics.get", "logging.logMetrics.update",
         "logging.logMetrics.delete"),
    ),
    Role(
        "roles/monitoring.editor", "create alerts, channels and dashboards",
        ("monitoring.alertPolicies.create", "monitoring.alertPolicies.get", "monitoring.alertPolicies.update",
         "monitoring.alertPolicies.delete", "monitoring.notificationChannels.create",
         "monitoring.notificationChannels.get", "monitoring.notificationChannels.update",
         "monitoring.notificationChannels.delete", "monitoring.dashboards.create",
         "monitoring.dashboards.get", "monitoring.dashboards.update", "monitoring.dashboards.delete",
         "monitoring.metricDescriptors.get"),
    ),
    Role(
        "roles/pubsub.admin", "create the topics of channels, and let Google publish to them",
        ("pubsub.topics.create", "pubsub.topics.get", "pubsub.topics.update", "pubsub.topics.delete",
         "pubsub.topics.getIamPolicy", "pubsub.topics.setIamPolicy"),
    ),
    Role(
        "roles/serviceusage.serviceUsageConsumer", "count the budget's requests against the project's quota",
        ("serviceusage.services.use",), setting="billing_account",
    ),
    Role(
        "roles/billing.costsManager", "create the budget",
        ("billing.budgets.create", "billing.budgets.get", "billing.budgets.update", "billing.budgets.delete"),
        "billing account", "billing_account",
    ),
)  # fmt: skip

_OF_BUDGET = re.compile(r"billing\.budgets\.|\bBudget\b[^\n]*Error 403")


def _missing_grant(settings: Settings, message: str) -> str:
    """Return the grant on the billing account that an update lacked."""
    if not _OF_BUDGET.search(message) or classify(message).kind is not Kind.PERMISSION:
        return ""
    role, account = "roles/billing.costsManager", settings[MonitoringSettings].billing_account
    return (
        f"{role} on the billing account to whoever runs this: "
        f"gcloud billing accounts add-iam-policy-binding {account} --member=user:YOU --role={role}"
    )


_MONITORING = "https://monitoring.googleapis.com/"

_LOOKUPS = {
    "gcp:monitoring/alertPolicy:AlertPolicy": Lookup(
        "MONITORING", _MONITORING, "v3/projects/{project}/alertPolicies", "alertPolicies"
    ),
    "gcp:monitoring/notificationChannel:NotificationChannel": Lookup(
        "MONITORING", _MONITORING, "v3/projects/{project}/notificationChannels", "notificationChannels"
    ),
    "gcp:monitoring/dashboard:Dashboard": Lookup(
        "MONITORING", _MONITORING, "v1/projects/{project}/dashboards", "dashboards"
    ),
    "gcp:billing/budget:Budget": Lookup(
        "BILLING_BUDGETS",
        "https://billingbudgets.googleapis.com/v1/",
        "billingAccounts/{billingAccount}/budgets",
        "budgets",
    ),
}

LAYER = Layer(
    name="monitoring",
    reads=("storage",),
    settings=MonitoringSettings,
    rules=RULES,
    record_rules={ChannelSettings: channel, AlertSettings: alert},
    roles=_ROLES,
    services=_services,
    providers={"gcp": _gcp},
    outputs=MonitoringOutputs,
    prices=_prices,
    rates=_rates,
    at_google=_at_google,
    ids={
        "gcp:logging/metric:Metric": "{name}",
        "gcp:pubsub/topic:Topic": "projects/{project}/topics/{name}",
        "gcp:pubsub/topicIAMMember:TopicIAMMember": "{topic} {role} {member}",
    },
    hooks=Hooks(
        missing_grant=_missing_grant,
        lookups=_LOOKUPS,
        transient_errors={UNKNOWN: "Cloud Monitoring doesn't know the new metrics yet"},
    ),
    program=deferred(f"{__package__}.program"),
)

"""Declares the monitoring layer."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.core import names, upstream
from infra.core.watched import Alert, Count, LogMetric, full_name, metric_type
from infra.google.measured import wait_until_it_is_known
from infra.layers.monitoring import commands, documentation, metrics
from infra.layers.monitoring.budget import Budget
from infra.layers.monitoring.channels import Channels
from infra.layers.monitoring.dashboards import dashboards
from infra.layers.monitoring.outputs import MonitoringOutputs
from infra.layers.monitoring.rules import made
from infra.layers.monitoring.settings import MonitoringSettings
from infra.layers.storage.outputs import StorageOutputs
from infra.settings.schema import Settings

# 64 buckets from 0.001 on, each 1.5 times as wide: to 10⁸. Means are exact; only percentiles are as coarse.
_BUCKETS: Any = {"exponential_buckets": {"num_finite_buckets": 64, "growth_factor": 1.5, "scale": 0.001}}
# An incident without new points, because its node is gone, is closed after so long.
_AUTO_CLOSE = "86400s"


class Metrics(pulumi.ComponentResource):
    """The metrics that are made of log entries."""

    metrics: list[gcp.logging.Metric]

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions):
        super().__init__("tpu:monitoring:Metrics", "metrics", None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.metrics = [self._metric(metric, settings, child) for metric in metrics.of(settings.layers_on)]
        self.register_outputs({})

    @staticmethod
    def _metric(metric: LogMetric, settings: Settings, opts: pulumi.ResourceOptions) -> gcp.logging.Metric:
        described: Any = {
            "metric_kind": "DELTA",
            "value_type": "DISTRIBUTION" if metric.value else "INT64",
            "unit": metric.unit,
            "display_name": metric.about,
        }
        if metric.labels:
            described["labels"] = [{"key": key, "value_type": "STRING"} for key in metric.labels]
        return gcp.logging.Metric(
            metric.name,
            name=full_name(metric.name, settings),
            description=metric.about,
            filter=metrics.filter_of(metric, settings),
            metric_descriptor=described,
            label_extractors=dict(metric.labels) or None,
            value_extractor=metric.value or None,
            bucket_options=_BUCKETS if metric.value else None,
            opts=opts,
        )


def _conditions(alert: Alert, settings: Settings, threshold: float) -> Any:
    return [
        {"display_name": called, **condition.arguments(settings, threshold)}
        for called, condition in alert.conditions.items()
    ]


def _after_metrics(alert: Alert, settings: Settings) -> pulumi.ResourceHookBinding | None:
    """Let an alert wait until Monitoring knows the metrics of ours that its thresholds are on."""
    needed = [
        metric_type(condition.metric.name, settings)
        for condition in alert.conditions.values()
        if isinstance(condition, Count) and isinstance(condition.metric, LogMetric)
    ]

    async def wait(_: pulumi.ResourceHookArgs) -> None:
        await asyncio.to_thread(wait_until_it_is_known, needed, settings.project)

    if not needed:
        return None
    known = pulumi.ResourceHook(f"{alert.name}-metrics", wait)
    return pulumi.ResourceHookBinding(before_create=[known], before_update=[known])


class Alerts(pulumi.ComponentResource):
    """The alert policies, by the names of the alerts."""

    policies: dict[str, gcp.monitoring.AlertPolicy]

    def __init__(
        self, settings: Settings, channels: Channels, counted: Metrics, opts: pulumi.ResourceOptions
    ):
        super().__init__("tpu:monitoring:Alerts", "alerts", None, opts)
        # A threshold on a metric that Monitoring doesn't know is refused: the metrics come first.
        self.policies = {
            alert.name: gcp.monitoring.AlertPolicy(
                alert.name,
                display_name=f"tpu {settings.environment}: {alert.name}",
                combiner="OR",
                conditions=_conditions(alert, settings, threshold),
                severity=alert.severity,
                documentation=documentation.of(alert, settings),
                alert_strategy={"auto_close": _AUTO_CLOSE},
                notification_channels=[channels.ids[name] for name in named],
                enabled=True,
                user_labels={**names.labels(settings.environment, "monitoring"), "alert": alert.name},
                opts=pulumi.ResourceOptions(
                    parent=self, depends_on=counted.metrics, hooks=_after_metrics(alert, settings)
                ),
            )
            for alert, threshold, named in made(settings)
        }
        self.register_outputs({})


class Dashboards(pulumi.ComponentResource):
    """The dashboards, by name."""

    dashboards: dict[str, gcp.monitoring.Dashboard]

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions):
        super().__init__("tpu:monitoring:Dashboards", "dashboards", None, opts)
        self.dashboards = {
            name: gcp.monitoring.Dashboard(
                name,
                dashboard_json=dashboard.text(),
                project=settings.project,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for name, dashboard in dashboards(settings).items()
        }
        self.register_outputs({})


def _together(values: Mapping[str, pulumi.Output[str]]) -> pulumi.Output[dict[str, str]]:
    """`Output.all` of nothing would be a list."""
    return pulumi.Output.all(**values) if values else pulumi.Output.from_input({})


def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> MonitoringOutputs:
    """Metrics, channels, alerts, dashboards and the budget."""
    opts = pulumi.ResourceOptions(provider=providers["gcp"])
    monitoring = settings[MonitoringSettings]
    number: pulumi.Input[str] = ""
    if monitoring.billing_account or any(channel.topic for channel in monitoring.channels):
        number = upstream.read(StorageOutputs, settings).project_number
    counted = Metrics(settings, opts)
    channels = Channels(settings, number, opts)
    alerts = Alerts(settings, channels, counted, opts)
    shown = Dashboards(settings, opts).dashboards if monitoring.dashboards else {}
    if monitoring.billing_account:
        Budget(settings, channels, number, opts)
    return MonitoringOutputs(
        dashboard_urls=_together({name: dashboard.id for name, dashboard in shown.items()}).apply(
            lambda ids: {name: commands.dashboard_url(id_, settings.project) for name, id_ in ids.items()}
        ),
        policy_names=_together({name: policy.name for name, policy in alerts.policies.items()}),
        channel_names=_together(channels.ids),
        useful_commands=pulumi.Output.from_input(commands.useful(settings)),
    )

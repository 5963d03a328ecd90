"""Outputs of the monitoring layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.core.outputs import Outputs, output

if TYPE_CHECKING:
    from pulumi import Output


class MonitoringOutputs(Outputs, layer="monitoring"):
    """Dashboards and commands."""

    dashboard_urls: Output[dict[str, str]] = output("mapping: a dashboard's address, by its name")
    policy_names: Output[dict[str, str]] = output("mapping: `projects/P/alertPolicies/N`, by the alert")
    channel_names: Output[dict[str, str]] = output(
        "mapping: `projects/P/notificationChannels/N`, by the channel's name"
    )
    useful_commands: Output[dict[str, str]] = output("mapping: commands to begin with, by what they show")

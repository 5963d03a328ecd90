"""A budget of the whole project: Google notifies, up to a day late, and ends nothing."""

from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.layers.monitoring.channels import Channels
from infra.layers.monitoring.settings import MonitoringSettings
from infra.settings.schema import Settings

# Of the month so far; and that the month is going to cost all of it.
CURRENT, FORECAST = (0.5, 0.9, 1.0), 1.0
_NAME_LENGTH = 60  # https://cloud.google.com/billing/docs/reference/budget/rest/v1/billingAccounts.budgets


class Budget(pulumi.ComponentResource):
    """The budget, and who is notified: the channels, and the billing account's administrators."""

    budget: gcp.billing.Budget

    def __init__(
        self,
        settings: Settings,
        channels: Channels,
        number: pulumi.Input[str],
        opts: pulumi.ResourceOptions,
    ):
        super().__init__("tpu:monitoring:Budget", "budget", None, opts)
        monitoring = settings[MonitoringSettings]
        rules: Any = [{"spend_basis": "CURRENT_SPEND", "threshold_percent": share} for share in CURRENT]
        rules.append({"spend_basis": "FORECASTED_SPEND", "threshold_percent": FORECAST})
        # Only e-mail channels may be named; https://cloud.google.com/billing/docs/how-to/budgets-notification-recipients
        email = [channel.name for channel in monitoring.channels if channel.email]
        topic = next(iter(channels.topics.values()), None)
        notified: Any = {"disable_default_iam_recipients": False}
        if email:
            notified["monitoring_notification_channels"] = [channels.ids[name] for name in email]
        if topic is not None:
            notified |= {"pubsub_topic": topic, "schema_version": "1.0"}
        self.budget = gcp.billing.Budget(
            "budget",
            billing_account=monitoring.billing_account,
            display_name=f"tpu {settings.environment}: {settings.project}"[:_NAME_LENGTH],
            # Google takes the billing account's currency, and refuses another one.
            amount={"specified_amount": {"units": str(monitoring.budget_per_month)}},
            budget_filter={
                "projects": [pulumi.Output.concat("projects/", number)],
                "calendar_period": "MONTH",
                "credit_types_treatment": "INCLUDE_ALL_CREDITS",
            },
            threshold_rules=rules,
            all_updates_rule=notified if len(notified) > 1 else None,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})

"""Types with bodies or requests of their own: dashboards, budgets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rehearsal.providers.gcp import mapping
from rehearsal.providers.gcp.lifecycle import Context, PlannedUpdate, Resource
from rehearsal.providers.gcp.suppress import basename
from rehearsal.providers.gcp.table import Service, Update

BUDGETS = Service("billingbudgets")
DASHBOARDS = Service("monitoring", document="monitoring.v1")


class Dashboard(Resource):
    """A dashboard, which is one JSON text."""

    def content(self, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the dashboard itself."""
        dashboard: dict[str, Any] = json.loads(planned["dashboardJson"])
        return dashboard

    def written(self, context: Context, request: Update, change: PlannedUpdate) -> dict[str, Any]:
        """Return the dashboard with the previous etag."""
        etag = json.loads(change.state["dashboardJson"])["etag"]
        return {**self.content(change.planned, change.inputs), "etag": etag}

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the dashboard as one text."""
        rest = super().get(context, known)
        return rest and {"dashboardJson": json.dumps(rest, sort_keys=True, separators=(",", ":"))}


DASHBOARD = Dashboard(
    "gcp:monitoring/dashboard:Dashboard",
    DASHBOARDS,
    "v1/{name}",
    (Update("dashboardJson"),),
    {"dashboardJson": "at=dashboardJson"},
    id="{name}",
    collection="v1/projects/{project}/dashboards",
    assigned={"name": "name"},
)

_RULE = "notificationsRule"
_RULES = ("pubsubTopic", "schemaVersion", "monitoringNotificationChannels", "disableDefaultIamRecipients")

BUDGET = Resource(
    "gcp:billing/budget:Budget",
    BUDGETS,
    "{name}",
    (Update(mask="updateMask"),),
    {
        "name": {"decode": basename},
        "billingAccount": "local",
        "allUpdatesRule": {"is": f"at={_RULE}", "mask": ",".join(f"{_RULE}.{rule}" for rule in _RULES)},
        "amount": {
            "mask": ",".join(f"amount.specifiedAmount.{x}" for x in ("currencyCode", "units", "nanos"))
        },
        "amount.lastPeriodAmount": {"encode": lambda *_: {}, "decode": lambda raw: raw is not None},
        "budgetFilter.calendarPeriod": {  # MONTH is Google's default, and isn't sent
            "encode": lambda period, _: mapping.OMITTED if period == "MONTH" else period,
            "same": lambda wanted, current: wanted == (current or "MONTH"),
        },
        "budgetFilter.labels": {
            "encode": lambda labels, _: {key: [value] for key, value in labels.items()},
            "decode": lambda raw: raw and {key: values[0] for key, values in raw.items()},
        },
    },
    collection="billingAccounts/{billingAccount}/budgets",
    assigned={"name": "name"},
    schema="GoogleCloudBillingBudgetsV1Budget",
)

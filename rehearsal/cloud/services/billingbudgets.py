"""Cloud Billing budgets. Nothing is spent, so no threshold is crossed.

https://cloud.google.com/billing/docs/reference/budget/rest/v1/billingAccounts.budgets
"""

from __future__ import annotations

import uuid

from google_facts import table
from rehearsal.cloud.collections import KEEP, Change, Collection, Entry, Reference
from rehearsal.cloud.collections.checks import every, not_emulated, one_of, topic
from rehearsal.cloud.core.errors import bad_request


def _budget(change: Change) -> None:
    money = change.body["amount"].get("specifiedAmount", {})
    if money and int(money.get("units", 0)) <= 0 and int(money.get("nanos", 0)) <= 0:
        raise bad_request("Request contains an invalid argument: amount.specified_amount must be positive.")
    if money and money.setdefault("currencyCode", change.world.currency) != change.world.currency:
        raise bad_request(table("billing")["budget"]["wrong_currency"])
    rule = change.body.get("notificationsRule", {})
    if rule.get("pubsubTopic") and rule.get("schemaVersion") != "1.0":
        raise bad_request('Request contains an invalid argument: schema_version must be "1.0".')
    own = {f"projects/{change.world.project}", f"projects/{change.world.number}"}
    if strange := set(change.body.setdefault("budgetFilter", {}).get("projects", ())) - own:
        raise bad_request(
            f"Request contains an invalid argument: {', '.join(sorted(strange))} isn't of this account."
        )
    change.body["budgetFilter"].setdefault("creditTypesTreatment", "INCLUDE_ALL_CREDITS")
    if "customPeriod" not in change.body["budgetFilter"]:
        change.body["budgetFilter"].setdefault("calendarPeriod", "MONTH")


ENTRY = Entry(
    "billingbudgets",
    ("v1",),
    (
        Collection(
            "billingbudgets.billingAccounts.budgets",
            permission="billing.budgets",
            new_id=lambda *_: str(uuid.uuid4()),
            references=(
                topic("notificationsRule.pubsubTopic"),
                Reference(
                    "notificationsRule.monitoringNotificationChannels",
                    ("monitoring.projects.notificationChannels",),
                    on_delete=KEEP,
                ),
            ),
            check=every(
                one_of("amount.specifiedAmount", "amount.lastPeriodAmount"), not_emulated("spendCap"), _budget
            ),
        ),
    ),
)

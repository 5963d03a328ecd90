"""Cloud Billing: the one account, and its policy.

https://cloud.google.com/billing/docs/reference/rest/v1/billingAccounts
"""

from rehearsal.cloud.collections import Collection, Entry
from rehearsal.cloud.core.world import World


def add_account(world: World) -> None:
    """Add the account, which is open."""
    world.directory[world.billing_account] = {
        "name": world.billing_account, "displayName": "The account", "open": True,
        "currencyCode": world.currency, "parent": world.organization, "masterBillingAccount": "",
    }  # fmt: skip


ENTRY = Entry(
    "cloudbilling",
    ("v1",),
    (
        Collection(
            "cloudbilling.billingAccounts",
            permission="billing.accounts",
            omit=("list", "create", "patch"),
        ),
    ),
)

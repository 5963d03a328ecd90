"""The budget's billing account: who may make budgets of it, and its currency.

https://cloud.google.com/billing/docs/reference/rest/v1/billingAccounts
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.core.environment import required_roles
from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding
from infra.doctor.grants import command
from infra.google.client import Client, RequestError, permissions_held
from infra.google.failures import Kind
from infra.layers.builds import names
from infra.layers.builds.access import by_hand
from infra.layers.builds.settings import BuildsSettings
from infra.layers.monitoring.layer import LAYER
from infra.layers.monitoring.settings import MonitoringSettings
from infra.settings.schema import Settings

_API = "https://cloudbilling.googleapis.com/v1/billingAccounts"


def check(google: Client, settings: Settings, what: str) -> Iterator[Finding]:
    """Report whether budgets can be made, by this login and by builds. A login needn't, as others may."""
    monitoring = settings[MonitoringSettings]
    url = f"{_API}/{monitoring.billing_account}"
    (role,) = (role for role in required_roles([LAYER], settings) if role.on == "billing account")
    grant = command(role, settings, "user:YOU")
    try:
        currency = google.json("GET", url).get("currencyCode")
        lacking = sorted(set(role.permissions) - permissions_held(google, url, role.permissions))
        policy = google.json("GET", f"{url}:getIamPolicy") if by_hand(settings) else {}
    except RequestError as error:
        if error.failure.kind not in (Kind.PERMISSION, Kind.MISSING):
            raise
        why = f"{monitoring.billing_account} can't be read: {error.failure.message}"
        yield Finding(what, OPTIONAL, f"{why}; who brings monitoring up needs it", grant)
        return
    if lacking:
        detail = f"not granted: {', '.join(lacking)}; who brings monitoring up needs them"
        yield Finding(what, OPTIONAL, detail, grant)
    for line in by_hand(settings):
        member = f"serviceAccount:{names.email(settings)}"
        granted = {item["role"] for item in policy.get("bindings") or () if member in item["members"]}
        if not granted & {role.name, "roles/billing.admin"}:
            account = settings[BuildsSettings].account_id
            yield Finding(what, MISSING, f"{account}, as which builds apply, can't make the budget", line)
            return
    if not lacking:
        yield Finding(what, OK, f"a budget of {monitoring.budget_per_month:,} {currency} a month can be made")

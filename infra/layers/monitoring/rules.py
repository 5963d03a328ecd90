"""Rules of the monitoring layer's settings."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from infra.core.watched import Alert
from infra.errors import Problem
from infra.layers.monitoring import alerts
from infra.layers.monitoring.prices import unpriced
from infra.layers.monitoring.settings import AlertSettings, ChannelSettings, MonitoringSettings
from infra.settings.schema import Relation, Settings
from infra.settings.unread import ReadWith, unread

_MOST_CHANNELS = 16  # https://cloud.google.com/monitoring/quotas
MOST_EMAILS = 5
"""https://cloud.google.com/billing/docs/reference/budget/rest/v1/billingAccounts.budgets#NotificationsRule"""
KINDS = ("email", "webhook", "topic", "existing")


def channel(
    path: str, item: ChannelSettings, text: dict[str, Any], bad: set[str]
) -> tuple[Any, list[Problem]]:
    """Return an item of `monitoring:channels`."""
    given = [kind for kind in KINDS if text.get(kind) is not None]
    if len(given) == 1 or any(place.startswith(f"{path}.") for place in bad):
        return item, []
    bad.add(path)
    kinds = " and ".join(given) or "none of them"
    return item, [Problem(path, kinds, f"a channel is one of {', '.join(KINDS)}", "write exactly one")]


def alert(path: str, item: AlertSettings, text: dict[str, Any], bad: set[str]) -> tuple[Any, list[Problem]]:
    """Return an item of `monitoring:alerts`; one that isn't made has a name alone."""
    unread = [] if item.enabled else [key for key in ("threshold", "channels") if key in text]
    rule = "an alert with enabled: false isn't made"
    return item, [
        Problem(f"{path}.{key}", "a value that nothing reads", rule, "remove it, or enabled: false")
        for key in unread
    ]


def made(settings: Settings) -> list[tuple[Alert, float, tuple[str, ...]]]:
    """Return the alerts of an environment: each with its threshold and the channels that it goes to."""
    monitoring = settings[MonitoringSettings]
    given = {alert.name: alert for alert in monitoring.alerts}
    every = tuple(channel.name for channel in monitoring.channels)
    enabled = []
    for alert in alerts.of(settings.layers_on).values() if monitoring.alerting else ():
        own = given.get(alert.name)
        if own and not own.enabled:
            continue
        threshold = alert.threshold if own is None or own.threshold is None else own.threshold
        enabled.append((alert, threshold, (own.channels if own else ()) or every))
    return enabled


def _listed(settings: Settings, given: set[str]) -> Iterator[Problem]:
    monitoring = settings.get(MonitoringSettings)
    if monitoring is None:
        return
    known = [item.name for item in monitoring.channels]
    declared = alerts.of(settings.layers)
    for number, name in enumerate(known):
        if name in known[:number]:
            rule = "each channel has its own name"
            yield Problem(f"monitoring:channels[{number}].name", f'"{name}" again', rule, "rename one")
    names = [item.name for item in monitoring.alerts]
    for number, item in enumerate(monitoring.alerts):
        path = f"monitoring:alerts[{number}]"
        alert = declared.get(item.name)
        if item.name in names[:number]:
            yield Problem(f"{path}.name", f'"{item.name}" again', "each alert is listed once", "join the two")
        if alert is None:
            near = get_close_matches(item.name, declared, 1)
            rule = f"the alerts are {', '.join(declared)}"
            fix = f"perhaps {near[0]}" if near else "remove it"
            yield Problem(f"{path}.name", f'"{item.name}"', rule, fix)
        elif item.threshold is not None and not alert.low <= item.threshold <= alert.high:
            rule = f"{alert.low:g} to {alert.high:g}: {alert.unit}"
            yield Problem(f"{path}.threshold", f"{item.threshold:g}", rule, "write a number in that range")
        for place, name in enumerate(item.channels):
            if name not in known:
                rule = f"a channel of monitoring:channels: {', '.join(known) or 'there is none'}"
                near = get_close_matches(name, known, 1)
                fix = f"perhaps {near[0]}" if near else "add it there"
                yield Problem(f"{path}.channels[{place}]", f'"{name}"', rule, fix)


def _channels(settings: Settings, given: set[str]) -> Iterator[Problem]:
    monitoring = settings.get(MonitoringSettings)
    channels = monitoring.channels if monitoring else ()
    taken = set[str]()
    for number, item in enumerate(channels):
        path = f"monitoring:channels[{number}]"
        for kind in KINDS:
            address = getattr(item, kind)
            if address in taken:
                fix = "remove one of the two channels"
                yield Problem(f"{path}.{kind}", f'"{address}" again', "an address is notified once", fix)
            elif address:
                taken.add(address)
        project = item.existing.split("/")[1] if item.existing else settings.project
        if project != settings.project and not project.isdecimal():
            rule = f"an alert notifies channels of its project, {settings.project}"
            yield Problem(f"{path}.existing", f'"{item.existing}"', rule, "make the channel there")
    if len(channels) > _MOST_CHANNELS:
        rule = f"an alert goes to {_MOST_CHANNELS} channels at most"
        yield Problem("monitoring:channels", f"{len(channels)} channels", rule, "name a group or a topic")


def _notified(settings: Settings, given: set[str]) -> Iterator[Problem]:
    monitoring = settings.get(MonitoringSettings)
    if monitoring and not monitoring.channels and made(settings):
        fix = "write e.g. [{name: oncall, email: oncall@example.com}], or monitoring:alerting: false"
        yield Problem("monitoring:channels", "nothing", "an alert needs a channel", fix)


def _priced(settings: Settings, given: set[str]) -> Iterator[Problem]:
    if MonitoringSettings not in settings.sections:
        return
    if any(alert.name == "spend-high" for alert, _, _ in made(settings)) and (without := unpriced(settings)):
        rule = "what is spent is known where the catalog has a price of the zone"
        fix = "add {name: spend-high, enabled: false}"
        yield Problem("monitoring:alerts", f"spend-high, and slices in {', '.join(without)}", rule, fix)


def _budget(settings: Settings, given: set[str]) -> Iterator[Problem]:
    monitoring = settings.get(MonitoringSettings)
    if monitoring is None:
        return
    account, amount = monitoring.billing_account, monitoring.budget_per_month
    for key, value, needed, example in (
        ("billingAccount", account, amount, "the id that `gcloud billing accounts list` prints"),
        ("budgetPerMonth", amount, account, "1000, in the account's currency"),
    ):
        if value is None and needed is not None:
            rule = "a budget needs both, the billing account and the amount"
            yield Problem(f"monitoring:{key}", "nothing", rule, f"write monitoring:{key}: {example}")
    emails = sum(channel.email is not None for channel in monitoring.channels)
    if account and emails > MOST_EMAILS:
        rule = f"a budget notifies {MOST_EMAILS} addresses at most"
        yield Problem("monitoring:channels", f"{emails} with an email, beside a budget", rule,
                      "name a group")  # fmt: skip


_ALERTS = ("monitoring:alerts", "monitoring:channels")
RULES: tuple[Relation, ...] = (
    (_ALERTS, _listed),
    (("monitoring:channels",), _channels),
    ((*_ALERTS, "monitoring:alerting"), _notified),
    ((*_ALERTS, "monitoring:alerting", "tpu:slices", "tpu:zones"), _priced),
    (("monitoring:billingAccount", "monitoring:budgetPerMonth", "monitoring:channels"), _budget),
    unread(
        "monitoring",
        MonitoringSettings,
        ReadWith(("alerts", "runbooks"), "alerting: true", lambda item: item.alerting),
        ReadWith(
            ("channels",),
            "alerting: true or a budget",
            lambda item: item.alerting or item.billing_account or not item.channels,
        ),
    ),
)

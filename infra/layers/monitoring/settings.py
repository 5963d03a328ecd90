"""Settings of the monitoring layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from infra.settings import rules
from infra.settings.schema import setting
from settings_schema.schema import Former

_NAME = rules.pattern(
    "[a-z]([-a-z0-9]{0,38}[a-z0-9])?",
    "1 to 40 lowercase letters, digits and hyphens, first a letter, last no hyphen",
    "rename it",
)
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_EMAIL = rules.pattern(
    rf"(?i){rules.LOCAL_PART}@{_LABEL}(\.{_LABEL})+", "an e-mail address", "write e.g. oncall@example.com"
)
# Services whose URLs are secrets themselves: who has one may post.
_SECRET_PATHS = r"hooks\.slack\.com|hooks\.zapier\.com|discord(app)?\.com|[^/]*\.webhook\.office\.com"
_PRIVATE = r"localhost|[0-9.]+|\[.*\]|.*\.(internal|local)"  # names and addresses that Google doesn't reach
_WEBHOOK = rules.pattern(
    rf"https://(?![^/]*@)(?!({_SECRET_PATHS}|{_PRIVATE})([:/]|$))[^\s?#/]+(/[^\s?#]*)?",
    "an https URL of a public name without user, query and fragment, not of Slack, Discord, Teams or Zapier, "
    "whose path is a secret: it would lie in the stack's state",
    "write one that needs no token, a topic, or as existing a channel that the console made",
)
_TOPIC = rules.pattern(
    "(?!goog)[a-zA-Z][-A-Za-z0-9_.~+%]{2,254}",
    "a topic's name: 3 to 255 letters, digits and -_.~+%, first a letter, not starting with goog",
    "rename it",
)
_EXISTING = rules.pattern(
    rf"projects/({rules.PROJECT}|\d+)/notificationChannels/\d+",
    "projects/P/notificationChannels/N",
    "copy it from `gcloud beta monitoring channels list --format='value(name)'`",
)
_BILLING = rules.pattern(
    "[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}",
    "a billing account's id, such as 012345-6789AB-CDEF01",
    "copy it from `gcloud billing accounts list`",
)
_BASE = rules.pattern(
    r"https://(?![^/]*@)[^\s?#]+[^\s?#/]",
    "an https URL without a user, or a slash at its end",
    "write that of docs/runbooks",
)


@dataclass(frozen=True, kw_only=True)
class ChannelSettings:
    """An item of `monitoring:channels`: exactly one of email, webhook, topic and existing."""

    name: str = setting("name by which alerts refer to it", rule=_NAME, example="oncall")
    email: str | None = setting("e-mail address", default=None, rule=_EMAIL)
    webhook: str | None = setting("URL that receives each incident", default=None, rule=_WEBHOOK)
    topic: str | None = setting("Pub/Sub topic, which the layer creates", default=None, rule=_TOPIC)
    existing: str | None = setting("existing channel of any kind", default=None, rule=_EXISTING)


@dataclass(frozen=True, kw_only=True)
class AlertSettings:
    """An item of `monitoring:alerts`: values that differ from docs/reference/monitoring.md."""

    name: str = setting("which alert", example="run-stalled")
    enabled: bool = setting("false: the alert isn't created", default=True)
    threshold: float | None = setting(
        "the alert fires beyond it; default: docs/reference/monitoring.md", default=None
    )
    channels: tuple[str, ...] = setting(
        "names of its channels; default: all",
        default=(),
        not_empty="an alert goes to some channel",
    )


@dataclass(frozen=True, kw_only=True)
class MonitoringSettings:
    """Log-based metrics, alerts, notification channels, dashboards, and a budget."""

    channels: tuple[ChannelSettings, ...] = setting(
        "notification channels", default=(), example="[{name: oncall, email: oncall@example.com}]"
    )
    alerts: tuple[AlertSettings, ...] = setting(
        "changes to the alerts of docs/reference/monitoring.md",
        default=(),
    )
    alerting: bool = setting("false: no alerts, only metrics and dashboards", default=True)
    dashboards: bool = setting("false: no dashboards", default=True)
    runbooks: str | None = setting(
        "URL of your copy of docs/runbooks, which notifications link to; they contain the text anyway",
        default=None,
        rule=_BASE,
    )
    billing_account: str | None = setting(
        "the project's billing account; with it the layer creates a budget", default=None, rule=_BILLING
    )
    budget_per_month: int | None = setting(
        "budget of the whole project, in the billing account's currency; it notifies at 50, 90 and 100 %",
        default=None,
        rule=rules.between(1, 1_000_000_000, "a month"),
    )

    former: ClassVar[Mapping[str, Former]] = {
        "budgetDollarsPerMonth": Former(
            "unknown key",
            "write monitoring:budgetPerMonth: that amount was in dollars, this one is in the billing"
            " account's currency",
            "budgetPerMonth",
        ),
    }

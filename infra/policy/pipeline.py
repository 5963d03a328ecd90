"""Rules for what runs once, and for alerts."""

from collections.abc import Iterator

from infra.policy.rule import Resource, Rule, forbidden
from infra.settings import Settings


def _told(one: Resource, _: Settings) -> Iterator[str]:
    if not one.inputs.get("notificationChannels"):
        yield "notificationChannels: nothing"
    if not one.get("documentation.content"):
        yield "documentation.content: nothing"
    if not one.get("severity"):
        yield "severity: nothing"
    for condition in one.inputs.get("conditions") or ():
        if "conditionMonitoringQueryLanguage" in condition:
            yield "conditions: MQL, which Google ended support of on 2025-07-22"


RULES = (
    Rule("PL1", ("gcp:dataproc/batch:Batch", "gcp:vertex/*CustomJob*"),
         "no run is a resource: a failed one would leave the state and stay at Google",
         "let a workflow start it", "", forbidden),
    Rule("PL6", ("gcp:monitoring/alertPolicy:AlertPolicy",),
         "an alert tells somebody, how bad it is and what to do", "channels, severity, documentation", "",
         _told),
)  # fmt: skip

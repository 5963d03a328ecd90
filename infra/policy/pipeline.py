"""Rules for what runs once, and for alerts."""

import re
from collections.abc import Iterator

from infra.pipeline import places
from infra.pipeline.settings import PipelineSettings
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


def _by_content(one: Resource, _: Settings) -> Iterator[str]:
    name = str(one.inputs.get("name") or "")
    if name.endswith(".zip") and not re.search("[0-9a-f]{64}", name):
        yield f"name: {name}"


def _workflow(one: Resource, settings: Settings) -> Iterator[str]:
    if not one.get("serviceAccount"):
        yield "serviceAccount: nothing"
    if one.get("deletionProtection") is not False:
        yield f"deletionProtection: {one.get('deletionProtection')}"


def _trigger(one: Resource, settings: Settings) -> Iterator[str]:
    account = str(one.get("serviceAccount") or "")
    ours = settings.get(PipelineSettings)
    others = {places.account(settings, which) for which in places.ACCOUNTS if which != places.TRIGGER}
    if not account or (ours and account in others):
        yield f"serviceAccount: {account or 'nothing'}"


def _function(one: Resource, _: Settings) -> Iterator[str]:
    for path in ("serviceConfig.serviceAccountEmail", "buildConfig.serviceAccount"):
        if not one.get(path):
            yield f"{path}: nothing"
    if (ingress := one.get("serviceConfig.ingressSettings")) != "ALLOW_INTERNAL_ONLY":
        yield f"serviceConfig.ingressSettings: {ingress or 'nothing'}"


# Of an entry each has its own: a label of them would be a time series an entry.
_UNBOUNDED = (
    "insertId",
    "timestamp",
    "receiveTimestamp",
    "trace",
    "spanId",
    "textPayload",
    "jsonPayload.message",
)
_MOST_LABELS = 3


def _bounded(one: Resource, _: Settings) -> Iterator[str]:
    labels = one.get("labelExtractors") or {}
    if len(labels) > _MOST_LABELS:
        yield f"labelExtractors: {len(labels)} labels"
    for label, extractor in labels.items():
        if any(extractor == f"EXTRACT({field})" for field in _UNBOUNDED):
            yield f"labelExtractors.{label}: {extractor}"


def _in_time(one: Resource, _: Settings) -> Iterator[str]:
    if not one.get("budgetFilter.projects"):
        yield "budgetFilter.projects: nothing, which is all of the billing account"
    shares = [rule.get("thresholdPercent") or 0 for rule in one.inputs.get("thresholdRules") or ()]
    if not any(0 < share < 1 for share in shares):
        yield f"thresholdRules: {', '.join(f'{100 * share:g} %' for share in shares) or 'nothing'}"


def _without_secret(one: Resource, _: Settings) -> Iterator[str]:
    for key in ("sensitiveLabels", "labels.auth_token", "labels.password"):
        if one.get(key):
            yield f"{key}: a secret"
    url = str(one.get("labels.url") or "")
    if url and not url.startswith("https://"):
        yield f"labels.url: {url.partition(':')[0]}"
    if "?" in url or "@" in url.partition("//")[2].partition("/")[0]:
        yield "labels.url: with what may be a token"


RULES = (
    Rule("PL1", ("gcp:dataproc/batch:Batch", "gcp:vertex/*CustomJob*"),
         "no run is a resource: a failed one would leave the state and stay at Google",
         "let a workflow start it", "", forbidden),
    Rule("PL3", ("gcp:storage/bucketObject:BucketObject",),
         "a function's source is named by its content, or a change of it isn't deployed",
         "its sha256 in the name", "", _by_content),
    Rule("PL4", ("gcp:workflows/workflow:Workflow",),
         "a workflow has an account of its own, and can be destroyed with its stack",
         "service_account, and deletion_protection=False", "", _workflow),
    Rule("PL5", ("gcp:eventarc/trigger:Trigger",),
         "what starts runs has an account that can do nothing else", "an account of its own", "", _trigger),
    Rule("PL16", ("gcp:cloudfunctionsv2/function:Function",),
         "a function and its build have accounts of their own, and nobody calls it from outside",
         'both accounts, and ingress_settings="ALLOW_INTERNAL_ONLY"', "", _function),
    Rule("PL6", ("gcp:monitoring/alertPolicy:AlertPolicy",),
         "an alert tells somebody, how bad it is and what to do", "channels, severity, documentation", "",
         _told),
    Rule("PL8", ("gcp:logging/metric:Metric",),
         "a metric of logs has few labels, and none that each entry has its own value of",
         "3 labels at most, of nodes, zones or states", "", _bounded),
    Rule("PL12", ("gcp:billing/budget:Budget",),
         "a budget is of this project, and notifies before it is spent",
         "budgetFilter.projects, and a threshold below 100 %", "", _in_time),
    Rule("PL15", ("gcp:monitoring/notificationChannel:NotificationChannel",),
         "no secret of a channel is in the state, and no incident is sent in the clear",
         "an https URL without a token, a topic, or monitoring:channels[].existing", "", _without_secret),
)  # fmt: skip

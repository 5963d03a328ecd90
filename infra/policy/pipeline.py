"""Rules for what runs once, and for alerts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from google_facts import regions
from infra.layers.monitoring.settings import MonitoringSettings
from infra.layers.pipeline import facts, paths
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage.settings import StorageSettings
from infra.policy.rule import STACK, Resource, Rule, every, forbidden, given, literal, nothing
from infra.settings.schema import Settings

_OBJECT = ("gcp:storage/bucketObject:BucketObject",)
_JOB = "gcp:cloudscheduler/job:Job"
_WORKS_THERE = {
    "gcp:vertex/aiTensorboard:AiTensorboard": "region",
    _JOB: "region",  # or nearby: it only calls the function
    "gcp:cloudfunctionsv2/function:Function": "location",
    "gcp:eventarc/trigger:Trigger": "location",
}
# A label of these has a value for each entry, and Google bills and limits by the value.
_ENDLESS = re.compile(
    r"^EXTRACT\((textPayload|insertId|timestamp|receiveTimestamp|trace|spanId|httpRequest\.requestUrl|"
    r"(json|proto)Payload\.(message|why|url|requestMetadata.*|status\.message))\)$"
)


def _living_language(resource: Resource, _: Settings) -> Iterator[str]:
    for condition in resource.inputs.get("conditions") or ():
        if "conditionMonitoringQueryLanguage" in condition:
            yield "conditions: MQL, which Google ended support of on 2025-07-22"


def _by_content(resource: Resource, _: Settings) -> Iterator[str]:
    name = str(resource.inputs.get("name") or "")
    if name.endswith(".zip") and not re.search("[0-9a-f]{64}", name):
        yield f"name: {name}"


def _trigger(resource: Resource, settings: Settings) -> Iterator[str]:
    account = str(resource.get("serviceAccount") or "")
    pipeline = settings.get(PipelineSettings)
    accounts = {paths.account(settings, which) for which in paths.ACCOUNTS if which != paths.TRIGGER}
    if not account or (pipeline and account in accounts):
        yield f"serviceAccount: {account or 'nothing'}"


def _offered(resource: Resource, _: Settings) -> Iterator[str]:
    runtime = str(resource.get("buildConfig.runtime") or "")
    ends = facts.FUNCTION_RUNTIMES.get(runtime)
    if runtime.startswith("python") and (ends is None or ends < datetime.now(UTC).date()):
        yield f"buildConfig.runtime: {runtime}"


def _uploaded(resource: Resource, _: Settings, stack: Sequence[Resource]) -> Iterator[str]:
    source = resource.get("buildConfig.source.storageSource") or {}
    bucket, name = source.get("bucket"), source.get("object")
    objects = {
        (uploaded.inputs.get("bucket"), uploaded.inputs.get("name"))
        for uploaded in stack
        if uploaded.type in _OBJECT
    }
    if bucket and name and (bucket.removeprefix("gs://"), name) not in objects:
        yield f"buildConfig.source.storageSource: {bucket}/{name}"


_MOST_LABELS = 3


def _bare_names(resource: Resource, _: Settings) -> Iterator[str]:
    for path, value in _leaves("", resource.inputs):
        if path.lower().endswith("bucket") and str(value).startswith("gs://"):
            yield f"{path}: {value}"


def _leaves(above: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{above}.{key}".lstrip("."), item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(above, item)
    else:
        yield above, value


def _beside(resource: Resource, settings: Settings) -> Iterator[str]:
    key = _WORKS_THERE[resource.type]
    desired = settings[StorageSettings].location
    if resource.type == _JOB and (pipeline := settings.get(PipelineSettings)):
        desired = pipeline.schedule_region or regions.nearest("cloudscheduler", desired)
    if (location := resource.inputs.get(key)) != desired:
        yield f"{key}: {location or 'nothing'}"


def _few_values(resource: Resource, _: Settings) -> Iterator[str]:
    labels = resource.inputs.get("labelExtractors") or {}
    if len(labels) > _MOST_LABELS:
        yield f"labelExtractors: {len(labels)} labels"
    for label, extractor in sorted(labels.items()):
        if _ENDLESS.match(str(extractor)):
            yield f"labelExtractors.{label}: {extractor}"


def _in_time(resource: Resource, _: Settings) -> Iterator[str]:
    spent = [
        rule.get("thresholdPercent")
        for rule in resource.inputs.get("thresholdRules") or ()
        if rule.get("spendBasis", "CURRENT_SPEND") == "CURRENT_SPEND"
    ]
    if not {0.5, 0.9, 1} <= {*spent}:
        yield f"thresholdRules: {', '.join(f'{share:g}' for share in spent if share) or 'nothing'}"
    if not resource.get("budgetFilter.projects"):
        yield "budgetFilter.projects: nothing"


def _budgeted(stack: Resource, settings: Settings) -> Iterator[str]:
    """Yield a missing budget at the environment's first stack alone, since all stacks share it."""
    if stack.name != f"{settings.layers_on[0].name}-{settings.environment}":
        return
    monitoring = settings.get(MonitoringSettings)
    if settings.protected and (monitoring is None or monitoring.budget_per_month is None):
        yield "monitoring:budgetPerMonth: nothing"


def _without_secret(resource: Resource, _: Settings) -> Iterator[str]:
    for key in ("sensitiveLabels", "labels.auth_token", "labels.password"):
        if resource.get(key):
            yield f"{key}: a secret"
    url = str(resource.get("labels.url") or "")
    if url and not url.startswith("https://"):
        yield f"labels.url: {url.partition(':')[0]}"
    if "?" in url or "@" in url.partition("//")[2].partition("/")[0]:
        yield "labels.url: with what may be a token"


RULES = (
    Rule("PL1", ("gcp:dataproc/batch:Batch", "gcp:vertex/*CustomJob*"),
         "batches and custom jobs aren't Pulumi resources: a failed one would leave the state, not Google",
         "let the pipeline's function start it", "", forbidden),
    Rule("PL3", _OBJECT,
         "a function's source is named by its hash, so that changes are deployed",
         "its sha256 in the name", "", _by_content),
    Rule("PL5", ("gcp:eventarc/trigger:Trigger",),
         "the trigger has its own service account", "an account that no other component has", "", _trigger),
    Rule("PL16", ("gcp:cloudfunctionsv2/function:Function",),
         "a function and its build have their own service accounts, and ingress is internal",
         'both accounts, and ingress_settings="ALLOW_INTERNAL_ONLY"', "",
         every(given("serviceConfig.serviceAccountEmail", "buildConfig.serviceAccount"),
               literal("serviceConfig.ingressSettings", "ALLOW_INTERNAL_ONLY"))),
    Rule("PL18", ("gcp:cloudfunctionsv2/function:Function",),
         "a function depends on its source, an object that the same stack uploads",
         "a gcp.storage.BucketObject, and its name as storage_source.object", "", nothing, _uploaded),
    Rule("PL19", ("gcp:cloudfunctionsv2/function:Function",),
         "a function's Python is supported for years", "one of pipeline/facts.toml", "", _offered),
    Rule("PL8", ("gcp:logging/metric:Metric",),
         "a metric's label has few values: each is a time series",
         "a label of the entry, or REGEXP_EXTRACT of a known word", "", _few_values),
    Rule("PL12", ("gcp:billing/budget:Budget",),
         "a budget covers one project, and notifies at 50, 90 and 100 %",
         "budget_filter.projects, and thresholds of 0.5, 0.9 and 1", "", _in_time),
    Rule("PL22", (STACK,), "an environment other than dev has a budget; mandatory only in prod",
         "monitoring:billingAccount and monitoring:budgetPerMonth; or, where another budget covers "
         "the project, an exception in policy:exceptions", "", _budgeted, advice_but_in_prod=True),
    Rule("PL13", tuple(_WORKS_THERE),
         "functions, triggers, schedules and TensorBoards are in the checkpoint bucket's region",
         "storage:location", "", _beside),
    Rule("PL14", ("gcp:*",), "a bucket is given by its name where Google takes no URL", "without gs://", "",
         _bare_names),
    Rule("PL6", ("gcp:monitoring/alertPolicy:AlertPolicy",),
         "an alert has channels, a severity and instructions", "channels, severity, documentation", "",
         every(given("notificationChannels", "documentation.content", "severity"), _living_language)),
    Rule("PL15", ("gcp:monitoring/notificationChannel:NotificationChannel",),
         "a channel has no secret in Pulumi's state, and a webhook uses https",
         "an https URL without a token, a topic, or monitoring:channels[].existing", "", _without_secret),
)  # fmt: skip

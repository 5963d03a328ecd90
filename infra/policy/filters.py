"""Rules for the filters of alerts, dashboards and metrics: what they name exists."""

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from infra.core import facts
from infra.policy.rule import Resource, Rule
from infra.settings.schema import Settings

_ALERT = ("gcp:monitoring/alertPolicy:AlertPolicy",)
_DASHBOARD, _METRIC = "gcp:monitoring/dashboard:Dashboard", "gcp:logging/metric:Metric"
_RESOURCES = facts.of("infra.layers.monitoring")["resources"]
RESOURCE_LABELS: Mapping[str, tuple[str, ...]] = {
    name: tuple(labels) for name, labels in _RESOURCES.items() if isinstance(labels, list)
}
_METRIC_TYPE = re.compile(r'metric\.type\s*=\s*"')
_RESOURCE_TYPE = re.compile(r'(?:resource\.type\s*=\s*|monitored_resource=)"([^"]+)"')
_RESOURCE_LABEL = re.compile(r"resource\.labels?\.(\w+)")
# https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies#MetricThreshold
_COMPARISONS = ("COMPARISON_GT", "COMPARISON_LT")
_SHOWN = ("timeSeriesQuery", "logsPanel")


def _one_metric(resource: Resource, _: Settings) -> Iterator[str]:
    for condition in resource.inputs.get("conditions") or ():
        for kind in ("conditionThreshold", "conditionAbsent"):
            inner = condition.get(kind)
            if inner is None:
                continue
            text = str(inner.get("filter") or "")
            if len(_METRIC_TYPE.findall(text)) != 1:
                yield f"conditions.{kind}.filter: {text or 'nothing'}"
            if kind == "conditionThreshold" and inner.get("comparison") not in _COMPARISONS:
                yield f"conditions.{kind}.comparison: {inner.get('comparison') or 'nothing'}"


def _exists(resource: Resource, _: Settings) -> Iterator[str]:
    for path, part in _parts(resource):
        texts = list(_texts(part))
        types = {kind for text in texts for kind in _RESOURCE_TYPE.findall(text)}
        for kind in sorted(types - RESOURCE_LABELS.keys()):
            if near := get_close_matches(kind, RESOURCE_LABELS, 1, 0.8):
                yield f'{path}: resource.type="{kind}", perhaps {near[0]}'
        labels = {label for text in texts for label in _RESOURCE_LABEL.findall(text)}
        known = [RESOURCE_LABELS[kind] for kind in types if kind in RESOURCE_LABELS]
        if len(known) == len(types) == 1:
            for label in sorted(labels - set(known[0])):
                yield f"{path}: resource.labels.{label}, where {', '.join(types)} has {', '.join(known[0])}"


def _parts(resource: Resource) -> Iterator[tuple[str, Any]]:
    """Return the parts of a resource that have a filter: a condition, a line of a chart, or a metric."""
    if resource.type == _DASHBOARD:
        try:
            content = json.loads(str(resource.inputs.get("dashboardJson")))
        except ValueError:
            return
        yield from (("dashboardJson", part) for part in _queried(content))
    elif resource.type == _METRIC:
        yield "filter", [resource.inputs.get(key) for key in ("filter", "valueExtractor", "labelExtractors")]
    else:
        yield from (("conditions", condition) for condition in resource.inputs.get("conditions") or ())


def _queried(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        if any(key in value for key in _SHOWN):
            yield value
            return
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _queried(item)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


RULES = (
    Rule("PL20", _ALERT, "a threshold condition compares one metric, above or below",
         'a filter with one metric.type="…", and COMPARISON_GT or COMPARISON_LT', "", _one_metric),
    Rule("PL21", (*_ALERT, _DASHBOARD, _METRIC),
         "filters use existing resource types and labels",
         "those of infra/layers/monitoring/facts.toml; it knows the services of these stacks", "", _exists),
)  # fmt: skip

"""Cloud Logging: metrics based on logs, counted by services/monitoring/telemetry. Entries: entries.py.

https://cloud.google.com/logging/docs/reference/v2/rest/v2/projects.metrics
"""

from __future__ import annotations

from rehearsal.cloud.collections import Change, Collection, Entry
from rehearsal.cloud.core.errors import bad_request
from rehearsal.cloud.services.logging import counting


def _described(change: Change) -> None:
    sent = change.body.setdefault("metricDescriptor", {})
    kind = sent.setdefault("valueType", "INT64")
    if (kind == "DISTRIBUTION") != bool(change.body.get("valueExtractor")):
        raise bad_request(
            "A value extractor must be given for metrics of value type DISTRIBUTION, and only for these."
        )
    sent.setdefault("metricKind", "DELTA")
    sent.setdefault("unit", "1")
    sent["type"] = f"logging.googleapis.com/user/{change.id}"
    sent["name"] = f"projects/{change.world.project}/metricDescriptors/{sent['type']}"
    counting.check(change.body)


def _show_later(change: Change) -> None:
    """Let Cloud Monitoring know the metric later."""
    change.world.show_later(change.body["metricDescriptor"]["name"], change.world.lags.metric_s)


ENTRY = Entry(
    "logging",
    ("v2",),
    (
        Collection(
            "logging.projects.metrics",
            permission="logging.logMetrics",
            id_field="name",
            pattern=r"[-\w.,+!*',()%/]{1,100}",
            upsert=True,
            check=_described,
            created=_show_later,
        ),
    ),
)

"""Cloud Monitoring: dashboards, of its first version.

https://cloud.google.com/monitoring/api/ref_v3/rest/v1/projects.dashboards
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from rehearsal.cloud.collections import Change, Collection, Entry
from rehearsal.cloud.collections.checks import every, one_of
from rehearsal.cloud.services.monitoring.telemetry import promql

_LAYOUTS = ("gridLayout", "mosaicLayout", "rowLayout", "columnLayout")


def _queries(change: Change) -> None:
    """ApiError 400 for PromQL that can't be evaluated."""
    for text in expressions(change.body):
        promql.parse(text)


def expressions(value: Any) -> Iterator[str]:
    """Return all PromQL in a dashboard, or a part of one."""
    if isinstance(value, dict):
        yield from filter(None, [value.get("prometheusQuery")])
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from expressions(item)


ENTRY = Entry(
    "monitoring",
    ("v1",),
    (
        Collection(
            "monitoring.projects.dashboards",
            id_field="name",
            pattern=r"[-\w.~%]{1,100}",
            new_id=lambda *_: str(uuid.uuid4()),
            check=every(one_of(*_LAYOUTS), _queries),
        ),
    ),
)

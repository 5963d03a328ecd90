"""Cloud Monitoring: dashboards, of its first version.

https://cloud.google.com/monitoring/api/ref_v3/rest/v1/projects.dashboards
"""

from __future__ import annotations

import uuid

from rehearsal.cloud.collections import Collection, Entry
from rehearsal.cloud.collections.checks import one_of

_LAYOUTS = ("gridLayout", "mosaicLayout", "rowLayout", "columnLayout")

ENTRY = Entry(
    "monitoring",
    ("v1",),
    (
        Collection(
            "monitoring.projects.dashboards",
            id_field="name",
            pattern=r"[-\w.~%]{1,100}",
            new_id=lambda *_: str(uuid.uuid4()),
            check=one_of(*_LAYOUTS),
        ),
    ),
    roles={
        "roles/monitoring.dashboardEditor": ("monitoring.dashboards.*",),
        "roles/monitoring.dashboardViewer": ("monitoring.dashboards.get", "monitoring.dashboards.list"),
    },
)

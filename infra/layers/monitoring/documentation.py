"""Documentation of an alert: its page of docs/runbooks, of which Google shows 8 KiB, and a link to it."""

from typing import Any

from infra.core.watched import Alert
from infra.errors import InfraError
from infra.layers.monitoring.settings import MonitoringSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.settings.sources import PROGRAM, part

RUNBOOKS = part("docs/runbooks")
MOST_BYTES, MOST_SUBJECT = 8192, 255
"""https://cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies#Documentation"""


def page(alert: str) -> str:
    """Return the runbook of an alert. Raises InfraError where there is none."""
    path = RUNBOOKS / f"{alert}.md"
    if not path.is_file():
        where = path.relative_to(PROGRAM)
        raise InfraError(
            f"the alert {alert} has no page\n    fix: write {where}, or get the whole repository"
        )
    return path.read_text(encoding="utf-8")


def of(alert: Alert, settings: Settings) -> Any:
    """Return the documentation, as the provider takes it."""
    text = page(alert.name)
    for word, value in (
        ("ENV", settings.environment), ("PROJECT", settings.project),
        ("REGION", settings[StorageSettings].location),
    ):  # fmt: skip
        text = text.replace(word, value)
    base = settings[MonitoringSettings].runbooks
    links = {"links": [{"display_name": "runbook", "url": f"{base}/{alert.name}.md"}]} if base else {}
    return {
        "content": text.encode()[:MOST_BYTES].decode(errors="ignore"),
        "mime_type": "text/markdown",
        "subject": f"{settings.environment}: {alert.means}"[:MOST_SUBJECT],
        **links,
    }

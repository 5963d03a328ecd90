"""Cloud Monitoring at work: entries become points, policies are evaluated, and people are notified."""

from rehearsal.cloud.services.monitoring.telemetry.incidents import Telemetry
from rehearsal.cloud.services.monitoring.telemetry.records import Incident, Notification

__all__ = ["Incident", "Notification", "Telemetry"]

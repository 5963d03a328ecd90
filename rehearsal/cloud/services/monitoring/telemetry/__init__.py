"""Cloud Monitoring at work: entries become points, policies are evaluated, and people are notified."""

from rehearsal.cloud.services.monitoring.telemetry.incidents import Incident, Notification, Telemetry

__all__ = ["Incident", "Notification", "Telemetry"]

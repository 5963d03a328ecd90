"""URLs of the dashboards, and the commands to begin with."""

from infra.layers.monitoring.metrics import of_hosts
from infra.settings.schema import Settings
from infra.slices.names import LOG


def dashboard_url(dashboard: str, project: str) -> str:
    """Return a dashboard's URL, by its full name `projects/P/dashboards/D`."""
    number = dashboard.rpartition("/")[2]
    return f"https://console.cloud.google.com/monitoring/dashboards/builder/{number}?project={project}"


def useful(settings: Settings) -> dict[str, str]:
    """Commands, by what they show."""
    project, environment = settings.project, settings.environment
    events = f'logName="projects/{project}/logs/{LOG}" AND jsonPayload.event:* AND {of_hosts(settings)}'
    return {
        "alerts": f"gcloud monitoring policies list --project={project} "
        f"--filter='userLabels.environment={environment}'",
        "events": f"gcloud logging read '{events}' --project={project} --freshness=1d",
        "status": f"tpu status {environment}",
    }

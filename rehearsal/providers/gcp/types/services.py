"""Types that are all but plain: the properties of each that neither SDK nor document has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.providers.gcp.lifecycle import Context, Resource
from rehearsal.providers.gcp.suppress import basename
from rehearsal.providers.gcp.table import Service, Update

ARTIFACT_REGISTRY = Service("artifactregistry")
PUBSUB = Service("pubsub")
FUNCTIONS = Service("cloudfunctions2")
RUN = Service("cloudrunv2")
SCHEDULER = Service("cloudscheduler")
EVENTARC = Service("eventarc")
FILESTORE = Service("filestore")
SECRET_MANAGER = Service("secretmanager")
LOGGING = Service("logging")
MONITORING = Service("monitoring", document="monitoring.v3")

_MASKED = (Update(mask="updateMask"),)
_LOCATIONS = "projects/{project}/locations/{location}"


def _full_name(path: str) -> dict[str, Any]:
    """Encode the name as the resource's full path."""
    return {"encode": lambda name, planned: path.format_map({**planned, "name": name})}


def _by_key(key: str) -> dict[str, Any]:
    """Map a list in Pulumi to Google's map by one of its properties."""
    return {
        "encode": lambda items, _: {item.pop(key): item for item in [dict(item) for item in items or ()]},
        "decode": lambda raw: [{**item, key: name} for name, item in (raw or {}).items()],
    }


REPOSITORY = Resource(
    "gcp:artifactregistry/repository:Repository",
    ARTIFACT_REGISTRY,
    f"{_LOCATIONS}/repositories/{{repositoryId}}",
    _MASKED,
    {
        "name": {"decode": basename},
        "cleanupPolicies": _by_key("id"),
    },
    create_query={"repository_id": "{repositoryId}"},
)

TOPIC = Resource(
    "gcp:pubsub/topic:Topic",
    PUBSUB,
    "projects/{project}/topics/{name}",
    (Update(mask="updateMask", wrap="topic"),),
    {"name": "nameless"},
    collection="projects/{project}/topics/{name}",
    create_method="PUT",
    looks=1,
)


FUNCTION = Resource(
    "gcp:cloudfunctionsv2/function:Function",
    FUNCTIONS,
    f"{_LOCATIONS}/functions/{{name}}",
    _MASKED,
    {
        "name": _full_name(f"{_LOCATIONS}/functions/{{name}}"),
        "buildConfig.automaticUpdatePolicy buildConfig.onDeployUpdatePolicy": "always",
    },
    create_query={"functionId": "{name}"},
)


class SchedulerJob(Resource):
    """A job, which is resumed or paused once it is made."""

    def complete(self, _context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """Remove the deadline of a message to Pub/Sub."""
        return {**planned, "attemptDeadline": None} if planned.get("pubsubTarget") else planned

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """Create the job, then pause or resume it."""
        super().insert(context, planned, inputs)
        verb = "pause" if planned.get("paused") else "resume"
        return self.call(context, "POST", f"{self.item(planned)}:{verb}", planned, body={})


SCHEDULER_JOB = SchedulerJob(
    "gcp:cloudscheduler/job:Job",
    SCHEDULER,
    "projects/{project}/locations/{region}/jobs/{name}",
    (Update(),),
    {
        "name": _full_name("projects/{project}/locations/{region}/jobs/{name}"),
        "paused": "local",
    },
)

EVENTARC_TRIGGER = Resource(
    "gcp:eventarc/trigger:Trigger",
    EVENTARC,
    f"{_LOCATIONS}/triggers/{{name}}",
    _MASKED,
    {
        "name": {**_full_name(f"{_LOCATIONS}/triggers/{{name}}"), "decode": None},
        "matchingCriterias": "at=eventFilters",
        "destination.cloudRunService": "at=cloudRun",
    },
    create_query={"triggerId": "{name}"},
)

METRIC = Resource(
    "gcp:logging/metric:Metric",
    LOGGING,
    "projects/{project}/metrics/{name}",
    (Update(method="PUT", whole=True),),
    {"name": {"decode": None}},
    id="{name}",
    quoted=("name",),
)


ALERT_POLICY = Resource(
    "gcp:monitoring/alertPolicy:AlertPolicy",
    MONITORING,
    "v3/{name}",
    _MASKED,
    {"name": {"decode": None}},
    collection="v3/projects/{project}/alertPolicies",
    id="{name}",
    assigned={"name": "name"},
    schema="AlertPolicy",
)

CHANNEL = Resource(
    "gcp:monitoring/notificationChannel:NotificationChannel",
    MONITORING,
    "v3/{name}",
    (Update(),),
    {"name": {"decode": None}, "forceDelete": "local"},
    collection="v3/projects/{project}/notificationChannels",
    id="{name}",
    assigned={"name": "name"},
    delete_query={"force": "{forceDelete}"},
    schema="NotificationChannel",
)


SECRET = Resource(
    "gcp:secretmanager/secret:Secret",
    SECRET_MANAGER,
    "projects/{project}/secrets/{secretId}",
    (Update(mask="updateMask", whole=True),),
    {
        "replication.auto": {"is": "at=automatic always", "decode": lambda raw: raw},
        "deletionProtection": "local",
    },
    create_query={"secretId": "{secretId}"},
)

FILESTORE_INSTANCE = Resource(
    "gcp:filestore/instance:Instance",
    FILESTORE,
    f"{_LOCATIONS}/instances/{{name}}",
    (Update("description fileShares labels directoryServices performanceConfig", mask="updateMask"),),
    {
        "name": "nameless",
        "networks.reservedIpRange": {"decode": lambda _: None, "same": lambda *_: True},
        "desiredReplicaState": "local",
    },
    create_query={"instanceId": "{name}"},
)

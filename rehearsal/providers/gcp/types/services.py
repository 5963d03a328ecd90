"""Types that are all but plain: what the SDK and the document don't say of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.providers.gcp.lifecycle import Context, Resource
from rehearsal.providers.gcp.table import Service, Update, basename, same_basename

ARTIFACT_REGISTRY = Service("ARTIFACT_REGISTRY", "https://artifactregistry.googleapis.com/v1/")
PUBSUB = Service("PUBSUB", "https://pubsub.googleapis.com/v1/")
SECRET_MANAGER = Service("SECRET_MANAGER", "https://secretmanager.googleapis.com/v1/")
DATAPROC = Service("DATAPROC", "https://dataproc.googleapis.com/v1/")
FUNCTIONS = Service("CLOUDFUNCTIONS2", "https://cloudfunctions.googleapis.com/v2beta/")
RUN = Service("CLOUD_RUN_V2", "https://run.googleapis.com/v2/")
SCHEDULER = Service("CLOUD_SCHEDULER", "https://cloudscheduler.googleapis.com/v1/")
EVENTARC = Service("EVENTARC", "https://eventarc.googleapis.com/v1/")
WORKFLOWS = Service("WORKFLOWS", "https://workflows.googleapis.com/v1/")
LOGGING = Service("LOGGING", "https://logging.googleapis.com/v2/")
MONITORING = Service("MONITORING", "https://monitoring.googleapis.com/", "monitoring.v3")
IDENTITY = Service("IAM_BETA", "https://iam.googleapis.com/v1/")
VERTEX = Service("VERTEX_AI", "https://{region}-aiplatform.googleapis.com/v1beta1/")
FILESTORE = Service("FILESTORE", "https://file.googleapis.com/v1beta1/")

_MASKED = (Update(mask="updateMask"),)
_UNREAD: Mapping[str, Any] = {"decode": lambda _: None, "same": lambda _one, _other: True}
_LOCATIONS = "projects/{project}/locations/{location}"


def _full_name(path: str) -> dict[str, Any]:
    """The name goes out as the resource's full path."""
    return {"encode": lambda name, planned: path.format_map({**planned, "name": name})}


def _same_variables(wanted: Any, current: Any) -> bool:
    """Whether they differ in no more than a variable that Google sets itself."""
    return {"LOG_EXECUTION_ID": "true", **wanted} == {"LOG_EXECUTION_ID": "true", **(current or {})}


def _by_key(key: str) -> dict[str, Any]:
    """A list in Pulumi, of which Google has a map by one of its properties."""
    return {
        "is": "blocks",
        "encode": lambda items, _: {item.pop(key): item for item in [dict(item) for item in items or ()]},
        "decode": lambda found: [{**item, key: name} for name, item in (found or {}).items()],
    }


REPOSITORY = Resource(
    "gcp:artifactregistry/repository:Repository",
    ARTIFACT_REGISTRY,
    f"{_LOCATIONS}/repositories/{{repositoryId}}",
    _MASKED,
    {
        "format kmsKeyName mode mavenConfig remoteRepositoryConfig": "fixed",
        "name": {"decode": basename},
        "cleanupPolicies": _by_key("id"),
        "location": "computed",
    },
    create_query={"repository_id": "{repositoryId}"},
)

TOPIC = Resource(
    "gcp:pubsub/topic:Topic",
    PUBSUB,
    "projects/{project}/topics/{name}",
    (Update(mask="updateMask", wrap="topic"),),
    {"name": "nameless", "tags": "fixed", "messageStoragePolicy.allowedPersistenceRegions": "set"},
    collection="projects/{project}/topics/{name}",
    create_method="PUT",
    looks=1,
)

SUBSCRIPTION = Resource(
    "gcp:pubsub/subscription:Subscription",
    PUBSUB,
    "projects/{project}/subscriptions/{name}",
    (Update(mask="updateMask", mask_also="bigqueryConfig", wrap="subscription"),),
    {
        "name": "nameless",
        "topic filter enableMessageOrdering tags": "fixed",
        "topic": {
            "encode": lambda topic, planned: (
                topic if "/" in topic else f"projects/{planned['project']}/topics/{topic}"
            )
        },
        "deadLetterPolicy expirationPolicy retryPolicy": "always",
    },
    collection="projects/{project}/subscriptions/{name}",
    create_method="PUT",
    looks=1,
)

BATCH = Resource(
    "gcp:dataproc/batch:Batch",
    DATAPROC,
    f"{_LOCATIONS}/batches/{{batchId}}",
    create_query={"batchId": "{batchId}"},
)

FUNCTION = Resource(
    "gcp:cloudfunctionsv2/function:Function",
    FUNCTIONS,
    f"{_LOCATIONS}/functions/{{name}}",
    _MASKED,
    {
        "name": _full_name(f"{_LOCATIONS}/functions/{{name}}"),
        "serviceConfig.environmentVariables": {"same": _same_variables},
        "buildConfig.automaticUpdatePolicy buildConfig.onDeployUpdatePolicy": "always",
        "eventTrigger.eventFilters": "blocks",
    },
    create_query={"functionId": "{name}"},
)


def _run(token: str, plural: str, id_parameter: str) -> Resource:
    """Jobs and services of Cloud Run differ in names alone."""
    return Resource(
        token,
        RUN,
        f"{_LOCATIONS}/{plural}/{{name}}",
        (Update(),),
        {
            "name": "nameless",
            "deletionProtection": "local default=true",
            "*Probe.grpc *Probe.httpGet": "always",
        },
        create_query={id_parameter: "{name}"},
    )


RUN_JOB = _run("gcp:cloudrunv2/job:Job", "jobs", "jobId")
RUN_SERVICE = _run("gcp:cloudrunv2/service:Service", "services", "serviceId")


class SchedulerJob(Resource):
    """A job, which is resumed or paused once it is made."""

    def complete(self, _context: Context, planned: dict[str, Any]) -> dict[str, Any]:
        """A message to Pub/Sub has no deadline."""
        return {**planned, "attemptDeadline": None} if planned.get("pubsubTarget") else planned

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """Make the job, then say whether it runs."""
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
        "attemptDeadline": {
            "is": "default=180s",
            "same": lambda wanted, current: current in (None, "", wanted),
        },
        "timeZone": "default=Etc/UTC",
    },
)

EVENTARC_TRIGGER = Resource(
    "gcp:eventarc/trigger:Trigger",
    EVENTARC,
    f"{_LOCATIONS}/triggers/{{name}}",
    _MASKED,
    {
        "name": {**_full_name(f"{_LOCATIONS}/triggers/{{name}}"), "decode": None, "same": same_basename},
        "matchingCriterias": "blocks at=eventFilters",
        "destination.cloudRunService": "at=cloudRun",
        "transport channel": "fixed",
    },
    create_query={"triggerId": "{name}"},
)

# Not recorded; as in the provider's source (google/services/workflows/resource_workflows_workflow.go of
# https://github.com/hashicorp/terraform-provider-google).
WORKFLOW = Resource(
    "gcp:workflows/workflow:Workflow",
    WORKFLOWS,
    "projects/{project}/locations/{region}/workflows/{name}",
    _MASKED,
    {
        "name": {"decode": basename},
        "namePrefix": "local fixed",
        "region": "nameless fixed computed",
        "tags": "fixed",
        "serviceAccount": {"is": "computed", "same": same_basename},
        "deletionProtection": "local default=true",
    },
    create_query={"workflowId": "{name}"},
)

METRIC = Resource(
    "gcp:logging/metric:Metric",
    LOGGING,
    "projects/{project}/metrics/{name}",
    (Update(method="PUT", whole=True),),
    {"name": {"decode": None}, "metricDescriptor.labels": "blocks"},
    id="{name}",
    quoted=("name",),
)

SINK = Resource(
    "gcp:logging/projectSink:ProjectSink",
    LOGGING,
    "projects/{project}/sinks/{name}",
    (
        Update(
            "destination description disabled exclusions filter",
            mask="updateMask",
            mask_also="exclusions",
            query={"uniqueWriterIdentity": "{uniqueWriterIdentity}"},
        ),
    ),
    {"disabled exclusions": "updated", "uniqueWriterIdentity": "local default=true"},
    create_query={"uniqueWriterIdentity": "{uniqueWriterIdentity}"},
    client_library=True,
    looks_first=True,
)

ALERT_POLICY = Resource(
    "gcp:monitoring/alertPolicy:AlertPolicy",
    MONITORING,
    "v3/{name}",
    _MASKED,
    {"name": {"decode": None}, "enabled": "default=true"},
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
    {"name": {"decode": None}, "forceDelete": "local default=false", "enabled": "default=true"},
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
    _MASKED,
    {
        "replication.auto": {"is": "at=automatic always", "decode": lambda raw: raw},
        "replication.*": "fixed",
        "deletionProtection": "local",
    },
    create_query={"secretId": "{secretId}"},
)

TENSORBOARD = Resource(
    "gcp:vertex/aiTensorboard:AiTensorboard",
    VERTEX,
    "{name}",
    _MASKED,
    {"name": {"decode": None}, "region": "nameless fixed computed", "encryptionSpec": "fixed"},
    collection="projects/{project}/locations/{region}/tensorboards",
    assigned={"name": "name"},
    schema="GoogleCloudAiplatformV1beta1Tensorboard",
)

METADATA_STORE = Resource(
    "gcp:vertex/aiMetadataStore:AiMetadataStore",
    VERTEX,
    "projects/{project}/locations/{region}/metadataStores/{name}",
    exceptions={"name": "nameless"},
    id="{name}",
    create_query={"metadataStoreId": "{name}"},
)


class IdentityPool(Resource):
    """A workload identity pool, whose attestation rules are read beside it."""

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The pool and its rules."""
        rest = super().get(context, known)
        if rest is not None:
            self.call(context, "GET", f"{self.item(known)}:listAttestationRules", known)
        return rest


_POOLS = "projects/{project}/locations/global/workloadIdentityPools/{workloadIdentityPoolId}"

IDENTITY_POOL = IdentityPool(
    "gcp:iam/workloadIdentityPool:WorkloadIdentityPool",
    IDENTITY,
    _POOLS,
    _MASKED,
    schema="WorkloadIdentityPool",
    create_query={"workloadIdentityPoolId": "{workloadIdentityPoolId}"},
)

IDENTITY_PROVIDER = Resource(
    "gcp:iam/workloadIdentityPoolProvider:WorkloadIdentityPoolProvider",
    IDENTITY,
    f"{_POOLS}/providers/{{workloadIdentityPoolProviderId}}",
    _MASKED,
    schema="WorkloadIdentityPoolProvider",
    create_query={"workloadIdentityPoolProviderId": "{workloadIdentityPoolProviderId}"},
)

FILESTORE_INSTANCE = Resource(
    "gcp:filestore/instance:Instance",
    FILESTORE,
    f"{_LOCATIONS}/instances/{{name}}",
    (Update("description fileShares labels directoryServices performanceConfig", mask="updateMask"),),
    {
        "name": "nameless",
        "location": "computed",
        "networks.reservedIpRange": _UNREAD,
        "desiredReplicaState": "local default=READY",
    },
    create_query={"instanceId": "{name}"},
)

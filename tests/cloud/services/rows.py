"""The services that are driven, a row each: what is sent, and what their APIs don't have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google import pubsub_v1
from google.cloud import (
    artifactregistry_v1,
    container_v1,
    dataproc_v1,
    eventarc_v1,
    functions_v2,
    monitoring_dashboard_v1,
    run_v2,
    scheduler_v1,
    secretmanager_v1,
    tpu_v2,
    workflows_v1,
)
from google.cloud.billing import budgets_v1
from official import PROJECT, Client, Discovered, Door, Gapic

P = f"projects/{PROJECT}"
L, ZONE = f"{P}/locations/us-east5", f"{P}/locations/us-east5-b"
BILLING = "billingAccounts/01D4EE-079462-DFD6EC"
TOPIC, NO_TOPIC = f"{P}/topics/topic-of-tests", f"{P}/topics/none"
EMAIL, NOBODY = (f"{name}@{PROJECT}.iam.gserviceaccount.com" for name in ("worker", "nobody"))
METRIC = 'metric.type="tpu.googleapis.com/cpu/utilization" AND resource.type="tpu_worker"'
DEBIAN = "projects/debian-cloud/global/images/family/debian-12"
NET, SUBNET = f"{P}/global/networks/net", f"{P}/regions/us-east5/subnetworks/subnet"
IMAGE = "us-docker.pkg.dev/cloudrun/container/hello"
MACHINE = {
    "disks": [{"boot": True, "initializeParams": {"sourceImage": DEBIAN}}],
    "networkInterfaces": [{"network": NET, "subnetwork": SUBNET}],
}
IAM = frozenset({"getIamPolicy", "setIamPolicy", "testIamPermissions"})
MADE = Callable[[Door, str], Client]


@dataclass(frozen=True)
class Row:
    """One collection. `{id}` in bodies is the id of the resource.

    Attributes:
        method, version: what its method ids begin with, and the version of the document.
        make: its client, of a principal.
        body, change: a resource that is fine, and what an update changes.
        wrong: what of a body Google refuses with 400, beside an id that can't be one.
        missing: what of a body names something that isn't there; None where nothing can be named.
        permission: what creating asks for.
        viewer: the role on one resource that lets somebody get it.
        absent: the methods that the API doesn't have, `nextPageToken` where its lists have no pages, and
            `name` where the server makes the names.
        unserved: methods of the API that the emulation doesn't have.
    """

    method: str
    version: str
    make: MADE
    parent: str
    body: Any
    change: Any
    permission: str
    wrong: Any = None
    missing: Any = None
    viewer: str = "roles/viewer"
    absent: frozenset[str] = field(default_factory=frozenset)
    unserved: frozenset[str] = field(default_factory=frozenset)


def gapic(
    package: Any, client: Any, noun: str, host: str, collection: str, kind: type[Gapic] = Gapic, **more: Any
) -> MADE:
    return lambda door, principal: kind(package, client, noun, host, collection, door, principal, **more)


def discovered(method: str, version: str, host: str = "") -> MADE:
    return lambda door, principal: Discovered(method, version, door, principal, host)


class Batches(Gapic):
    """A batch's operation ends with the batch, which nothing runs here: it is cancelled."""

    def create(self, parent: str, id_: str, body: Any) -> str:
        sent = {"parent": parent, "batch": body, "batch_id": id_}
        return str(self._run(self._client.create_batch, sent, wait=False).metadata.batch)

    def delete(self, name: str) -> None:
        batch = self._client.get_batch(request={"name": name}) if self.get(name) else None
        if batch is not None and batch.state == batch.State.PENDING:
            self._cancel(batch.operation)
        self._call("delete", {"name": name})

    def _cancel(self, operation: str) -> None:
        """By the client's session: its own cancel_operation fails over REST with a KeyError of 'body'."""
        transport = self._client.transport
        transport._session.post(f"{transport._host}/v1/{operation}:cancel", json={}).raise_for_status()


class Jobs(Discovered):
    """A custom job, which nothing runs here, is cancelled before it can be deleted."""

    def delete(self, name: str) -> None:
        if self.get(name)["state"] == "JOB_STATE_PENDING":
            self._run(self._resource.cancel(name=name, body={}))
        super().delete(name)


class Pools(Gapic):
    """Changes of clusters and node pools are messages of their own."""

    def update(self, name: str, change: Any, body: Any) -> None:
        self._call("update", {"name": name, **change})


CONTAINER = frozenset({"nextPageToken", *IAM})
ROWS = (
    Row(
        "artifactregistry.projects.locations.repositories",
        "v1",
        gapic(
            artifactregistry_v1,
            artifactregistry_v1.ArtifactRegistryClient,
            "repository",
            "artifactregistry",
            "repositories",
            plural="repositories",
        ),
        L,
        {"format_": 1, "description": "one"},
        {"description": "two"},
        "artifactregistry.repositories.create",
        wrong={"description": "of no format"},
        viewer="roles/artifactregistry.reader",
    ),
    Row(
        "pubsub.projects.topics",
        "v1",
        gapic(pubsub_v1, pubsub_v1.PublisherClient, "topic", "pubsub", "topics"),
        P,
        {"labels": {"a": "one"}},
        {"labels": {"a": "two"}},
        "pubsub.topics.create",
        viewer="roles/pubsub.viewer",
    ),
    Row(
        "pubsub.projects.subscriptions",
        "v1",
        gapic(pubsub_v1, pubsub_v1.SubscriberClient, "subscription", "pubsub", "subscriptions"),
        P,
        {"topic": TOPIC},
        {"ack_deadline_seconds": 20},
        "pubsub.subscriptions.create",
        missing={"topic": NO_TOPIC},
        viewer="roles/pubsub.viewer",
    ),
    Row(
        "dataproc.projects.locations.batches",
        "v1",
        lambda door, who: Batches(
            dataproc_v1,
            dataproc_v1.BatchControllerClient,
            "batch",
            "dataproc",
            "batches",
            door,
            who,
            plural="batches",
        ),
        L,
        {
            "pyspark_batch": {"main_python_file_uri": "gs://bucket-of-tests/job.py"},
            "environment_config": {
                "execution_config": {"service_account": EMAIL, "subnetwork_uri": "subnet"}
            },
        },
        {},
        "dataproc.batches.create",
        wrong={"labels": {"a": "of nothing to run"}},
        missing={"environment_config": {"execution_config": {"service_account": NOBODY}}},
        absent=frozenset({"patch", *IAM}),
    ),
    Row(
        "workflows.projects.locations.workflows",
        "v1",
        gapic(workflows_v1, workflows_v1.WorkflowsClient, "workflow", "workflows", "workflows"),
        L,
        {"source_contents": "main:\n  steps:\n    - end: {return: 1}\n", "service_account": EMAIL},
        {"description": "two"},
        "workflows.workflows.create",
        wrong={"source_contents": "main: ["},
        missing={"service_account": NOBODY},
        absent=IAM,
    ),
    Row(
        "workflowexecutions.projects.locations.workflows.executions",
        "v1",
        discovered("workflowexecutions.projects.locations.workflows.executions", "v1"),
        f"{L}/workflows/base",
        {"argument": "{}"},
        {},
        "workflows.executions.create",
        wrong={"argumnt": "{}"},
        absent=frozenset({"patch", "delete", "name", *IAM}),
    ),
    Row(
        "eventarc.projects.locations.triggers",
        "v1",
        gapic(eventarc_v1, eventarc_v1.EventarcClient, "trigger", "eventarc", "triggers"),
        L,
        {
            "event_filters": [
                {"attribute": "type", "value": "google.cloud.pubsub.topic.v1.messagePublished"}
            ],
            "destination": {"workflow": f"{L}/workflows/base"},
            "service_account": EMAIL,
            "transport": {"pubsub": {"topic": TOPIC}},
        },
        {"labels": {"a": "two"}},
        "eventarc.triggers.create",
        wrong={"event_filters": []},
        missing={"destination": {"workflow": f"{L}/workflows/none"}},
        viewer="roles/eventarc.viewer",
    ),
    Row(
        "cloudfunctions.projects.locations.functions",
        "v2",
        gapic(functions_v2, functions_v2.FunctionServiceClient, "function", "cloudfunctions", "functions"),
        L,
        {
            "build_config": {
                "runtime": "python312",
                "entry_point": "main",
                "source": {"storage_source": {"bucket": "bucket-of-tests", "object_": "f.zip"}},
            },
            "service_config": {"service_account_email": EMAIL},
        },
        {"description": "two"},
        "cloudfunctions.functions.create",
        wrong={"build_config": {"entry_point": "main"}},
        missing={
            "build_config": {
                "runtime": "python312",
                "source": {"storage_source": {"bucket": "no-bucket-of-tests", "object_": "f.zip"}},
            }
        },
        viewer="roles/cloudfunctions.viewer",
    ),
    Row(
        "run.projects.locations.services",
        "v2",
        gapic(run_v2, run_v2.ServicesClient, "service", "run", "services"),
        L,
        {"template": {"containers": [{"image": IMAGE}], "service_account": EMAIL}},
        {"description": "two"},
        "run.services.create",
        wrong={"description": "of no template"},
        missing={"template": {"containers": [{"image": IMAGE}], "service_account": NOBODY}},
        viewer="roles/run.viewer",
    ),
    Row(
        "run.projects.locations.jobs",
        "v2",
        gapic(run_v2, run_v2.JobsClient, "job", "run", "jobs"),
        L,
        {"template": {"template": {"containers": [{"image": IMAGE}], "service_account": EMAIL}}},
        {"labels": {"a": "two"}},
        "run.jobs.create",
        wrong={"labels": {"a": "of no template"}},
        missing={"template": {"template": {"containers": [{"image": IMAGE}], "service_account": NOBODY}}},
        viewer="roles/run.viewer",
    ),
    Row(
        "cloudscheduler.projects.locations.jobs",
        "v1",
        gapic(scheduler_v1, scheduler_v1.CloudSchedulerClient, "job", "cloudscheduler", "jobs"),
        L,
        {
            "schedule": "0 3 * * *",
            "time_zone": "Etc/UTC",
            "pubsub_target": {"topic_name": TOPIC, "data": b"x"},
        },
        {"description": "two"},
        "cloudscheduler.jobs.create",
        wrong={"schedule": "once in a blue moon"},
        missing={"pubsub_target": {"topic_name": NO_TOPIC, "data": b"x"}},
        absent=IAM,
    ),
    Row(
        "monitoring.projects.dashboards",
        "v1",
        gapic(
            monitoring_dashboard_v1,
            monitoring_dashboard_v1.DashboardsServiceClient,
            "dashboard",
            "monitoring",
            "dashboards",
        ),
        P,
        {"display_name": "one", "grid_layout": {"columns": 2}},
        {"display_name": "two"},
        "monitoring.dashboards.create",
        wrong={"display_name": ""},
        absent=IAM,
    ),
    Row(
        "monitoring.projects.alertPolicies",
        "v3",
        discovered("monitoring.projects.alertPolicies", "v3"),
        P,
        {
            "displayName": "one",
            "combiner": "OR",
            "conditions": [
                {
                    "displayName": "c",
                    "conditionThreshold": {
                        "filter": METRIC,
                        "comparison": "COMPARISON_GT",
                        "duration": "60s",
                        "thresholdValue": 0.9,
                    },
                }
            ],
        },
        {"displayName": "two"},
        "monitoring.alertPolicies.create",
        wrong={"displayname": "one"},
        missing={"notificationChannels": [f"{P}/notificationChannels/1"]},
        absent=frozenset({"name", *IAM}),
    ),
    Row(
        "monitoring.projects.notificationChannels",
        "v3",
        discovered("monitoring.projects.notificationChannels", "v3"),
        P,
        {"type": "email", "displayName": "one", "labels": {"email_address": "a@example.com"}},
        {"displayName": "two"},
        "monitoring.notificationChannels.create",
        wrong={"type": "pigeon"},
        absent=frozenset({"name", *IAM}),
    ),
    Row(
        "logging.projects.metrics",
        "v2",
        discovered("logging.projects.metrics", "v2"),
        P,
        {"filter": "severity>=ERROR"},
        {"description": "two"},
        "logging.logMetrics.create",
        wrong={"filtre": "severity>=ERROR"},
        absent=IAM,
    ),
    Row(
        "billingbudgets.billingAccounts.budgets",
        "v1",
        gapic(budgets_v1, budgets_v1.BudgetServiceClient, "budget", "billingbudgets", "budgets"),
        BILLING,
        {
            "display_name": "one",
            "amount": {"specified_amount": {"currency_code": "USD", "units": 100}},
            "notifications_rule": {"pubsub_topic": TOPIC, "schema_version": "1.0"},
        },
        {"display_name": "two"},
        "billing.budgets.create",
        wrong={"amount": {}},
        missing={"notifications_rule": {"pubsub_topic": NO_TOPIC, "schema_version": "1.0"}},
        absent=frozenset({"name", *IAM}),
    ),
    Row(
        "aiplatform.projects.locations.customJobs",
        "v1",
        lambda door, who: Jobs(
            "aiplatform.projects.locations.customJobs", "v1", door, who, "us-east5-aiplatform"
        ),
        L,
        {
            "displayName": "one",
            "jobSpec": {
                "serviceAccount": EMAIL,
                "workerPoolSpecs": [
                    {
                        "machineSpec": {"machineType": "n1-standard-4"},
                        "replicaCount": "1",
                        "containerSpec": {"imageUri": IMAGE},
                    }
                ],
            },
        },
        {},
        "aiplatform.customJobs.create",
        wrong={"jobSpec": {"workerPools": []}},
        missing={
            "jobSpec": {
                "serviceAccount": NOBODY,
                "workerPoolSpecs": [
                    {"machineSpec": {"machineType": "n1-standard-4"}, "containerSpec": {"imageUri": IMAGE}}
                ],
            }
        },
        absent=frozenset({"patch", "name", *IAM}),
    ),
    Row(
        "aiplatform.projects.locations.tensorboards",
        "v1",
        discovered("aiplatform.projects.locations.tensorboards", "v1", "us-east5-aiplatform"),
        L,
        {"displayName": "one"},
        {"displayName": "two"},
        "aiplatform.tensorboards.create",
        wrong={"displayname": "one"},
        absent=frozenset({"name", *IAM}),
    ),
    Row(
        "secretmanager.projects.secrets",
        "v1",
        gapic(
            secretmanager_v1,
            secretmanager_v1.SecretManagerServiceClient,
            "secret",
            "secretmanager",
            "secrets",
        ),
        P,
        {"replication": {"automatic": {}}},
        {"labels": {"a": "two"}},
        "secretmanager.secrets.create",
        wrong={"labels": {"a": "kept nowhere"}},
        missing={"topics": [{"name": NO_TOPIC}]},
        viewer="roles/secretmanager.viewer",
    ),
    Row(
        "compute.addresses",
        "v1",
        discovered("compute.addresses", "v1"),
        f"{P}/regions/us-east5",
        {"description": "one"},
        {},
        "compute.addresses.create",
        wrong={"descriptoin": "one"},
        missing={"addressType": "INTERNAL", "subnetwork": f"{P}/regions/us-east5/subnetworks/none"},
        absent=frozenset({"patch", "getIamPolicy", "setIamPolicy"}),
    ),
    Row(
        "compute.instanceTemplates",
        "v1",
        discovered("compute.instanceTemplates", "v1"),
        f"{P}/global",
        {"properties": MACHINE | {"machineType": "n2-standard-2"}},
        {},
        "compute.instanceTemplates.create",
        wrong={"properites": {}},
        viewer="roles/compute.viewer",
        missing={"properties": MACHINE | {"networkInterfaces": [{"network": f"{P}/global/networks/none"}]}},
        absent=frozenset({"patch"}),
    ),
    Row(
        "compute.instances",
        "v1",
        discovered("compute.instances", "v1"),
        f"{P}/zones/us-east5-b",
        MACHINE | {"machineType": "zones/us-east5-b/machineTypes/n2-standard-2"},
        {},
        "compute.instances.create",
        wrong={"machineTyp": "n2-standard-2"},
        viewer="roles/compute.viewer",
        missing={"networkInterfaces": [{"subnetwork": f"{P}/regions/us-east5/subnetworks/none"}]},
        unserved=frozenset({"patch"}),
    ),
    Row(
        "container.projects.locations.clusters",
        "v1",
        lambda door, who: Pools(
            container_v1, container_v1.ClusterManagerClient, "cluster", "container", "clusters", door, who
        ),
        L,
        {
            "initial_node_count": 1,
            "network": f"{P}/global/networks/net",
            "subnetwork": f"{P}/regions/us-east5/subnetworks/subnet",
        },
        {"update": {"desired_logging_service": "none"}},
        "container.clusters.create",
        wrong={"network": NET, "subnetwork": SUBNET},
        missing={"subnetwork": f"{P}/regions/us-east5/subnetworks/none"},
        absent=CONTAINER,
    ),
    Row(
        "container.projects.locations.clusters.nodePools",
        "v1",
        lambda door, who: Pools(
            container_v1, container_v1.ClusterManagerClient, "node_pool", "container", "nodePools", door, who
        ),
        f"{L}/clusters/base",
        {"initial_node_count": 1},
        {"tags": {"tags": ["two"]}},
        "container.clusters.update",
        missing=None,
        absent=CONTAINER,
    ),
    Row(
        "tpu.projects.locations.queuedResources",
        "v2",
        gapic(tpu_v2, tpu_v2.TpuClient, "queued_resource", "tpu", "queuedResources", extra={"force": True}),
        ZONE,
        {
            "tpu": {
                "node_spec": [
                    {
                        "parent": ZONE,
                        "node_id": "node-{id}",
                        "node": {
                            "accelerator_type": "v6e-1",
                            "runtime_version": "v2-alpha-tpuv6e",
                            "network_config": {"network": NET, "subnetwork": SUBNET},
                        },
                    }
                ]
            },
            "spot": {},
        },
        {},
        "tpu.nodes.create",
        wrong={"tpu": {}},
        missing={
            "tpu": {
                "node_spec": [
                    {
                        "parent": ZONE,
                        "node_id": "node-{id}",
                        "node": {
                            "accelerator_type": "v6e-1",
                            "runtime_version": "v2-alpha-tpuv6e",
                            "network_config": {"network": NET, "subnetwork": f"{SUBNET}-none"},
                        },
                    }
                ]
            }
        },
        absent=frozenset({"patch", *IAM}),
    ),
)

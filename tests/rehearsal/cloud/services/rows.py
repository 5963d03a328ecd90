"""The services that are driven, a row each: what is sent, and what their APIs don't have."""

from __future__ import annotations

from typing import Any

from discovery_rows import DISCOVERED
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
from official import Gapic
from row import EMAIL, IAM, IMAGE, NET, NO_TOPIC, NOBODY, SUBNET, TOPIC, ZONE, L, P, Row, gapic

BILLING = "billingAccounts/01D4EE-079462-DFD6EC"
CONTAINER = frozenset({"nextPageToken", *IAM})


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


class Pools(Gapic):
    """Changes of clusters and node pools are messages of their own."""

    def update(self, name: str, change: Any, body: Any) -> None:
        self._call("update", {"name": name, **change})


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
        {"source_contents": "main:\n  steps:\n    - done: {return: 1}\n", "service_account": EMAIL},
        {"description": "two"},
        "workflows.workflows.create",
        wrong={"source_contents": "main: ["},
        missing={"service_account": NOBODY},
        absent=IAM,
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
    *DISCOVERED,
)

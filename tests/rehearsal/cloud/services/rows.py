"""The services that are driven, a row each: what is sent, and what their APIs don't have."""

from __future__ import annotations

from typing import Any

from discovery_rows import DISCOVERED
from official import Gapic
from row import EMAIL, IAM, IMAGE, NET, NO_TOPIC, NOBODY, SUBNET, TOPIC, ZONE, L, P, Row, gapic

CLOUD, BILLING = "google.cloud", "billingAccounts/01D4EE-079462-DFD6EC"
NODE = {
    "accelerator_type": "v6e-1",
    "runtime_version": "v2-alpha-tpuv6e",
    "network_config": {"network": NET, "subnetwork": SUBNET},
}
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
        L,
        {"format_": 1, "description": "one"},
        {"description": "two"},
        by=gapic(
            "google.cloud.artifactregistry_v1", "ArtifactRegistryClient", "repository", plural="repositories"
        ),
        wrong={"description": "of no format"},
        viewer="roles/artifactregistry.reader",
    ),
    Row(
        "pubsub.projects.topics",
        P,
        {"labels": {"a": "one"}},
        {"labels": {"a": "two"}},
        by=gapic("google.pubsub_v1", "PublisherClient", "topic"),
        viewer="roles/pubsub.viewer",
    ),
    Row(
        "pubsub.projects.subscriptions",
        P,
        {"topic": TOPIC},
        {"ack_deadline_seconds": 20},
        by=gapic("google.pubsub_v1", "SubscriberClient", "subscription"),
        missing={"topic": NO_TOPIC},
        viewer="roles/pubsub.viewer",
    ),
    Row(
        "dataproc.projects.locations.batches",
        L,
        {
            "pyspark_batch": {"main_python_file_uri": "gs://bucket-of-tests/job.py"},
            "environment_config": {
                "execution_config": {"service_account": EMAIL, "subnetwork_uri": "subnet"}
            },
        },
        {},
        by=gapic(
            "google.cloud.dataproc_v1", "BatchControllerClient", "batch", kind=Batches, plural="batches"
        ),
        wrong={"labels": {"a": "of nothing to run"}},
        missing={"environment_config": {"execution_config": {"service_account": NOBODY}}},
        absent=frozenset({"patch", *IAM}),
    ),
    Row(
        "eventarc.projects.locations.triggers",
        L,
        {
            "event_filters": [
                {"attribute": "type", "value": "google.cloud.pubsub.topic.v1.messagePublished"}
            ],
            "destination": {"cloud_run": {"service": "base", "region": "us-east5"}},
            "service_account": EMAIL,
            "transport": {"pubsub": {"topic": TOPIC}},
        },
        {"labels": {"a": "two"}},
        by=gapic(f"{CLOUD}.eventarc_v1", "EventarcClient", "trigger"),
        wrong={"event_filters": []},
        missing={"destination": {"cloud_run": {"service": "none", "region": "us-east5"}}},
        viewer="roles/eventarc.viewer",
    ),
    Row(
        "cloudfunctions.projects.locations.functions",
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
        by=gapic(f"{CLOUD}.functions_v2", "FunctionServiceClient", "function"),
        version="v2",
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
        L,
        {"template": {"containers": [{"image": IMAGE}], "service_account": EMAIL}},
        {"description": "two"},
        by=gapic(f"{CLOUD}.run_v2", "ServicesClient", "service"),
        version="v2",
        wrong={"description": "of no template"},
        missing={"template": {"containers": [{"image": IMAGE}], "service_account": NOBODY}},
        viewer="roles/run.viewer",
    ),
    Row(
        "cloudscheduler.projects.locations.jobs",
        f"{P}/locations/us-east4",  # there is none in us-east5
        {
            "schedule": "0 3 * * *",
            "time_zone": "Etc/UTC",
            "pubsub_target": {"topic_name": TOPIC, "data": b"x"},
        },
        {"description": "two"},
        by=gapic(f"{CLOUD}.scheduler_v1", "CloudSchedulerClient", "job"),
        wrong={"schedule": "once in a blue moon"},
        missing={"pubsub_target": {"topic_name": NO_TOPIC, "data": b"x"}},
        absent=IAM,
    ),
    Row(
        "monitoring.projects.dashboards",
        P,
        {"display_name": "one", "grid_layout": {"columns": 2}},
        {"display_name": "two"},
        by=gapic(f"{CLOUD}.monitoring_dashboard_v1", "DashboardsServiceClient", "dashboard"),
        wrong={"display_name": ""},
        absent=IAM,
    ),
    Row(
        "billingbudgets.billingAccounts.budgets",
        BILLING,
        {
            "display_name": "one",
            "amount": {"specified_amount": {"currency_code": "USD", "units": 100}},
            "notifications_rule": {"pubsub_topic": TOPIC, "schema_version": "1.0"},
        },
        {"display_name": "two"},
        by=gapic(f"{CLOUD}.billing.budgets_v1", "BudgetServiceClient", "budget"),
        wrong={"amount": {}},
        missing={"notifications_rule": {"pubsub_topic": NO_TOPIC, "schema_version": "1.0"}},
        absent=frozenset({"name", *IAM}),
    ),
    Row(
        "secretmanager.projects.secrets",
        P,
        {"replication": {"automatic": {}}},
        {"labels": {"a": "two"}},
        by=gapic(f"{CLOUD}.secretmanager_v1", "SecretManagerServiceClient", "secret"),
        wrong={"labels": {"a": "kept nowhere"}},
        missing={"topics": [{"name": NO_TOPIC}]},
        viewer="roles/secretmanager.viewer",
    ),
    Row(
        "container.projects.locations.clusters",
        L,
        {
            "initial_node_count": 1,
            "network": f"{P}/global/networks/net",
            "subnetwork": f"{P}/regions/us-east5/subnetworks/subnet",
        },
        {"update": {"desired_logging_service": "none"}},
        by=gapic(f"{CLOUD}.container_v1", "ClusterManagerClient", "cluster", kind=Pools),
        wrong={"network": NET, "subnetwork": SUBNET},
        missing={"subnetwork": f"{P}/regions/us-east5/subnetworks/none"},
        absent=CONTAINER,
    ),
    Row(
        "container.projects.locations.clusters.nodePools",
        f"{L}/clusters/base",
        {"initial_node_count": 1},
        {"tags": {"tags": ["two"]}},
        by=gapic(f"{CLOUD}.container_v1", "ClusterManagerClient", "node_pool", kind=Pools),
        absent=CONTAINER,
    ),
    Row(
        "tpu.projects.locations.nodes",
        ZONE,
        NODE,
        {"labels": {"a": "two"}},
        by=gapic(f"{CLOUD}.tpu_v2", "TpuClient", "node"),
        version="v2",
        wrong={"accelerator_type": "v6e-3"},
        missing={"network_config": {"network": NET, "subnetwork": f"{SUBNET}-none"}},
        absent=IAM,
    ),
    *DISCOVERED,
)

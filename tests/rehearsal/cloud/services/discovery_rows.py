"""The services that are driven by google-api-python-client."""

from __future__ import annotations

from official import Discovered
from row import EMAIL, IAM, IMAGE, NET, NOBODY, SUBNET, L, P, Row, discovered

METRIC = 'metric.type="tpu.googleapis.com/cpu/utilization" AND resource.type="tpu_worker"'
DEBIAN = "projects/debian-cloud/global/images/family/debian-12"
MACHINE = {
    "disks": [{"boot": True, "initializeParams": {"sourceImage": DEBIAN}}],
    "networkInterfaces": [{"network": NET, "subnetwork": SUBNET}],
}


class Jobs(Discovered):
    """A custom job, which nothing runs here, is cancelled before it can be deleted."""

    def delete(self, name: str) -> None:
        if self.get(name)["state"] == "JOB_STATE_PENDING":
            self._run(self._resource.cancel(name=name, body={}))
        super().delete(name)


DISCOVERED = (
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
                        "aggregations": [
                            {
                                "alignmentPeriod": "60s",
                                "perSeriesAligner": "ALIGN_MEAN",
                                "crossSeriesReducer": "REDUCE_MEAN",
                            }
                        ],
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
)

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
        "monitoring.projects.alertPolicies",
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
        version="v3",
        wrong={"displayname": "one"},
        missing={"notificationChannels": [f"{P}/notificationChannels/1"]},
        absent=frozenset({"name", *IAM}),
    ),
    Row(
        "monitoring.projects.notificationChannels",
        P,
        {"type": "email", "displayName": "one", "labels": {"email_address": "a@example.com"}},
        {"displayName": "two"},
        version="v3",
        wrong={"type": "pigeon"},
        absent=frozenset({"name", *IAM}),
    ),
    Row(
        "logging.projects.metrics",
        P,
        {"filter": "severity>=ERROR"},
        {"description": "two"},
        version="v2",
        wrong={"filtre": "severity>=ERROR"},
        absent=IAM,
    ),
    Row(
        "aiplatform.projects.locations.customJobs",
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
        by=discovered(Jobs, host="us-east5-aiplatform"),
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
        L,
        {"displayName": "one"},
        {"displayName": "two"},
        by=discovered(host="us-east5-aiplatform"),
        wrong={"displayname": "one"},
        absent=frozenset({"name", *IAM}),
    ),
    Row(
        "file.projects.locations.instances",
        f"{P}/locations/us-east5-b",
        {
            "tier": "BASIC_HDD",
            "fileShares": [{"name": "home", "capacityGb": "1024"}],
            "networks": [{"network": NET, "modes": ["MODE_IPV4"]}],
        },
        {"description": "two"},
        wrong={"teer": "BASIC_HDD"},
        missing={"networks": [{"network": f"{P}/global/networks/none", "modes": ["MODE_IPV4"]}]},
        absent=IAM,
    ),
    Row(
        "compute.addresses",
        f"{P}/regions/us-east5",
        {"description": "one"},
        {},
        wrong={"descriptoin": "one"},
        missing={"addressType": "INTERNAL", "subnetwork": f"{P}/regions/us-east5/subnetworks/none"},
        absent=frozenset({"patch", "getIamPolicy", "setIamPolicy"}),
    ),
    Row(
        "compute.instances",
        f"{P}/zones/us-east5-b",
        MACHINE | {"machineType": "zones/us-east5-b/machineTypes/n2-standard-2"},
        {},
        wrong={"machineTyp": "n2-standard-2"},
        viewer="roles/compute.viewer",
        missing={"networkInterfaces": [{"subnetwork": f"{P}/regions/us-east5/subnetworks/none"}]},
        unserved=frozenset({"patch"}),
    ),
)

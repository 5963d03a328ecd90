"""A cluster and its node pools, created and deleted.

The GKE layer under the roles that its people ask for, with Google's lags: APIs that are switched on late,
grants that reach the cluster late, a zone without chips, slices that are given back, once the cluster says
that no job runs on them, and a cluster that is deleted.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import NO_RESOURCES, pool
from rehearsal.scenario.scenario import Scenario

TRAIN = pool("train", "v6e-16", count=2)
SCENARIO = Scenario(
    clock=20,
    control_planes=True,
    settings={
        "data:snapshot": None,
        "data:sizeGib": None,
        "tpu:slices": [],
        "gke:nodeAccountUsers": ["user:platform-engineer@example.com"],
        "gke:artifactBucket": "my-project-artifacts",
        "gke:forceDestroy": True,
        "gke:tpuPools": [
            TRAIN,
            {"name": "big", "topology": "16x16", "zone": "us-east5-b", "flexStart": True},
        ],
    },
    steps=(
        step.preview(),
        step.up("storage"),
        step.up("network"),
        step.fault(
            "there is no v6e left in the zone",
            what=NO_RESOURCES,
            match={"method": "container.projects.locations.clusters.nodePools.create"},
        ),
        step.up("gke", refused="does not have enough resources"),
        step.up("gke"),
        step.unchanged("storage", "network", "gke"),
        step.settings({"gke:tpuPools": [{**TRAIN, "count": 0}]}),
        step.up("gke"),
        step.unchanged("gke"),
        step.destroy("gke"),
        step.destroy("network"),
    ),
)

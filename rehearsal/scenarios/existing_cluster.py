"""Jobs run on a cluster that another team made, and it stays when the layers go.

`tpu plan` names what the cluster lacks, `tpu up` adds pools and the queue, a job runs, `tpu down` removes what
was added.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import CLUSTER, FOUNDATION, IMAGES, QUEUE, TEAMS, ZONE, pool
from rehearsal.scenario.scenario import Scenario

PLACE = "projects/$project/locations/us-east5"
RANGES = {"pods": "192.168.64.0/20", "services": "192.168.80.0/22"}
THEIRS = {
    "name": "theirs",
    "network": "tpu-training",
    "subnetwork": "theirs",
    "initialNodeCount": 2,
    "locations": [ZONE],
    "nodeConfig": {"machineType": "n2-standard-4"},
    "ipAllocationPolicy": {
        "useIpAliases": True, "clusterSecondaryRangeName": "pods", "servicesSecondaryRangeName": "services",
    },
    "addonsConfig": {"gcsFuseCsiDriverConfig": {"enabled": True}},
    "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"allowExternalTraffic": True}},
}  # fmt: skip
SCENARIO = Scenario(
    clock=60,
    control_planes=True,
    settings={
        **CLUSTER,
        "gke:existingCluster": True,
        "gke:clusterName": "theirs",
        "gke:namespaces": ["vision"],
        "gke:tpuPools": [pool("train", "v6e-8", machineType="ct6e-standard-4t")],
        **QUEUE,
        "queue:teams": TEAMS[:1],
    },
    steps=(
        *FOUNDATION,
        IMAGES,
        step.request(
            "compute.v1.subnetworks.insert",
            arguments={
                "project": "$project",
                "region": "us-east5",
                "body": {
                    "name": "theirs",
                    "network": "projects/$project/global/networks/tpu-training",
                    "ipCidrRange": "10.129.0.0/20",
                    "secondaryIpRanges": [
                        {"rangeName": name, "ipCidrRange": cidr} for name, cidr in RANGES.items()
                    ],
                },
            },
        ),
        step.request(
            "container.v1.projects.locations.clusters.create",
            arguments={"parent": PLACE, "body": {"cluster": THEIRS}},
        ),
        step.command(
            "tpu plan dev gke",
            prints="(?s)theirs, workload pool none: .*fix: gcloud container clusters update theirs .*"
            "--workload-pool=my-project.svc.id.goog",
            fails=True,
        ).by("platform-engineer"),
        step.request(
            "compute.v1.subnetworks.setPrivateIpGoogleAccess",
            arguments={
                "project": "$project",
                "region": "us-east5",
                "subnetwork": "theirs",
                "body": {"privateIpGoogleAccess": True},
            },
        ),
        step.request(
            "container.v1.projects.locations.clusters.update",
            arguments={
                "name": f"{PLACE}/clusters/theirs",
                "body": {
                    "update": {"desiredWorkloadIdentityConfig": {"workloadPool": "$project.svc.id.goog"}}
                },
            },
        ),
        step.command("tpu plan dev gke queue", prints=r"\+ +gcp:container/nodePool:NodePool +train-0").by(
            "platform-engineer"
        ),
        step.command("tpu up dev gke queue --yes", prints="up; next: tpu job submit dev vision").by(
            "platform-engineer"
        ),
        step.unchanged("gke", "queue"),
        step.command(
            "pulumi -C infra/layers/gke stack export -s dev | grep -c container/cluster:Cluster || true",
            prints="^0$",
        ).by("platform-engineer"),
        step.command(
            'tpu job submit dev vision --pool train --name hello -- bash -c "true"', prints="hello: completed"
        ),
        step.command("tpu down dev gke queue --yes", prints="gke: destroyed").by("platform-engineer"),
        step.command(
            """
        # their cluster: state, zones, pools
        GOOGLE_APPLICATION_CREDENTIALS=$HOME/owner.json python - <<'END'
        import google.auth
        from google.auth.transport.requests import AuthorizedSession
        google = AuthorizedSession(google.auth.default(["https://www.googleapis.com/auth/cloud-platform"])[0])
        place = "projects/my-project/locations/us-east5/clusters/theirs"
        cluster = google.get(f"https://container.googleapis.com/v1/{place}").json()
        print(cluster["status"], *cluster["locations"], *(pool["name"] for pool in cluster["nodePools"]))
        END
        """,
            prints="^RUNNING us-east5-b default-pool$",
        ),
    ),
)

"""GKE: clusters and node pools. No control plane runs behind a cluster; its endpoint has no listener.

https://cloud.google.com/kubernetes-engine/docs/reference/rest/v1/projects.locations.clusters
"""

from rehearsal.cloud.collections import Entry
from rehearsal.cloud.services.container import clusters, pools

ENTRY = Entry(
    "container",
    ("v1", "v1beta1"),
    (clusters.CLUSTERS, pools.POOLS),
    roles={
        "roles/container.admin": ("container.*",),
        "roles/container.clusterAdmin": ("container.clusters.*", "container.operations.*"),
        "roles/container.viewer": ("container.*.get", "container.*.list"),
        "roles/container.defaultNodeServiceAccount": (),
    },
)

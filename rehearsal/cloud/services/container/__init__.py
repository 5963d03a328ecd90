"""GKE: clusters and node pools. In a world with control planes, rehearsal/kubernetes runs them.

https://cloud.google.com/kubernetes-engine/docs/reference/rest/v1/projects.locations.clusters
"""

from rehearsal.cloud.collections import Entry
from rehearsal.cloud.services.container import clusters, pools

ENTRY = Entry(
    "container",
    ("v1", "v1beta1"),
    (clusters.CLUSTERS, pools.POOLS),
)

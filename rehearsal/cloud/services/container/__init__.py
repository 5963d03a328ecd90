"""GKE: clusters and node pools. In a world with control planes, rehearsal/kubernetes runs them.

https://cloud.google.com/kubernetes-engine/docs/reference/rest/v1/projects.locations.clusters
"""

from rehearsal.cloud.collections import Entry
from rehearsal.cloud.services.container import access, clusters, pools

_SEE_CLUSTERS = (access.CONNECT, "container.clusters.get", "container.clusters.list")
_RBAC = ("clusterRoleBindings", "clusterRoles", "roleBindings", "roles")

ENTRY = Entry(
    "container",
    ("v1", "v1beta1"),
    (clusters.CLUSTERS, pools.POOLS),
    roles={
        "roles/container.admin": ("container.*",),
        "roles/container.clusterAdmin": ("container.clusters.*", "container.operations.*"),
        # https://cloud.google.com/kubernetes-engine/docs/how-to/iam
        "roles/container.clusterViewer": (*_SEE_CLUSTERS, "resourcemanager.projects.get"),
        "roles/container.developer": (
            *_SEE_CLUSTERS,
            "!container.clusters.*",
            "!container.operations.*",
            # It reads who may do what in a cluster, and changes nothing of that.
            *(f"container.{kind}.{verb}" for kind in _RBAC for verb in ("get", "list")),
            *(f"!container.{kind}.*" for kind in _RBAC),
            "container.*",
        ),
        "roles/container.viewer": (
            "!container.secrets.*",
            "container.*.get",
            "container.*.list",
            "container.*.getScale",
            "container.*.getStatus",
            access.CONNECT,
        ),
        "roles/container.defaultNodeServiceAccount": (),
    },
)

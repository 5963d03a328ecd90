"""What the fleet and `pulumi up` do as the person's account, by the role that holds it and nothing broader.

https://cloud.google.com/iam/docs/roles-permissions
"""

# What a controller does with nodes. Guest attributes are read by tpu.nodes.get.
ON_NODES = (
    "tpu.nodes.create", "tpu.nodes.delete", "tpu.nodes.get", "tpu.nodes.list", "tpu.nodes.update",
    "tpu.operations.get",
)  # fmt: skip
ON_PROJECT = {
    "roles/tpu.admin": (*ON_NODES, "tpu.acceleratortypes.list", "tpu.runtimeversions.list"),
    "roles/serviceusage.serviceUsageConsumer": ("serviceusage.quotas.get", "serviceusage.services.list"),
}  # fmt: skip
ON_ACCOUNT = {"roles/iam.serviceAccountUser": ("iam.serviceAccounts.actAs",)}
ON_BUCKET = {
    "roles/storage.objectUser": (
        "storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list",
    ),
}  # fmt: skip
_ROLE_OF = {one.lower(): role for role, some in (ON_PROJECT | ON_ACCOUNT | ON_BUCKET).items() for one in some}


def role_of(permission: str) -> str | None:
    """The role to ask for; None where the permission is none of those that a fleet needs."""
    return _ROLE_OF.get(permission.lower())

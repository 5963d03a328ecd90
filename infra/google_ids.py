"""What Google calls a resource, or a cluster an object, from type and inputs: the id that an import takes.

The forms are those of the "Import" sections of the provider's documentation, by type; where an import wants
another form than the state keeps (members of policies), the provider hands the state's one back.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from infra.layers import layers

_COMPUTE = "https://compute.googleapis.com/compute/v1"
FORMS: Mapping[str, str] = MappingProxyType(
    {
        "gcp:compute/disk:Disk": "projects/{project}/zones/{zone}/disks/{name}",
        "gcp:compute/firewall:Firewall": "projects/{project}/global/firewalls/{name}",
        "gcp:compute/network:Network": "projects/{project}/global/networks/{name}",
        "gcp:compute/router:Router": "projects/{project}/regions/{region}/routers/{name}",
        "gcp:compute/routerNat:RouterNat": "{project}/{region}/{router}/{name}",
        "gcp:compute/subnetwork:Subnetwork": "projects/{project}/regions/{region}/subnetworks/{name}",
        "gcp:kms/cryptoKey:CryptoKey": "{keyRing}/cryptoKeys/{name}",
        "gcp:kms/keyRing:KeyRing": "projects/{project}/locations/{location}/keyRings/{name}",
        "gcp:projects/iAMCustomRole:IAMCustomRole": "projects/{project}/roles/{roleId}",
        "gcp:projects/iAMMember:IAMMember": "{project} {role} {member}",
        "gcp:projects/service:Service": "{project}/{service}",
        "gcp:serviceaccount/account:Account": (
            "projects/{project}/serviceAccounts/{accountId}@{project}.iam.gserviceaccount.com"
        ),
        "gcp:serviceaccount/iAMMember:IAMMember": "{serviceAccountId} {role} {member}",
        "gcp:storage/bucket:Bucket": "{name}",
        "gcp:storage/bucketIAMMember:BucketIAMMember": "b/{bucket} {role} {member}",
        "gcp:tpu/v2Vm:V2Vm": "projects/{project}/locations/{zone}/nodes/{name}",
    }
)


def forms() -> Mapping[str, str]:
    """Those above, and those that layers declare for types of their own."""
    return {**FORMS, **{kind: form for layer in layers() for kind, form in layer.ids.items()}}


def google_id(kind: str, inputs: Mapping[str, Any], project: str) -> str | None:
    """The id that a resource of a type has once it is made; None where that can't be said.

    `project` is the provider's, for resources that name none.
    """
    if kind.startswith("kubernetes:"):  # https://www.pulumi.com/registry/packages/kubernetes/, "Import"
        meta = inputs.get("metadata", {})
        return "/".join(filter(None, (meta.get("namespace"), meta.get("name")))) or None
    try:
        found = forms()[kind].format_map({"project": project, **inputs})
    except KeyError:
        return None
    condition = inputs.get("condition")  # of a member of a policy; its title tells bindings of a role apart
    return f"{found} {condition['title']}" if condition else found


def of_compute(ids: Iterable[str]) -> dict[str, str]:
    """Ids of Compute Engine, each with the URL where Google answers for it."""
    return {id_: f"{_COMPUTE}/{id_}" for id_ in ids}

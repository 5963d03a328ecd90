"""What Google calls a resource, from its type and inputs: what Pulumi's provider imports it by.

The forms are those of the "Import" sections of the provider's documentation, by type; where an import wants
another form than the state keeps (members of policies), the provider hands the state's one back.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from infra import names, nodes
from infra.settings.schema import Settings

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


def google_id(kind: str, inputs: Mapping[str, Any], project: str) -> str | None:
    """The id that a resource of a type has once it is made; None where that can't be said.

    `project` is the provider's, for resources that name none.
    """
    try:
        found = FORMS[kind].format_map({"project": project, **inputs})
    except KeyError:
        return None
    condition = inputs.get("condition")  # of a member of a policy; its title tells bindings of a role apart
    return f"{found} {condition['title']}" if condition else found


def places(settings: Settings, layer: str) -> dict[str, str]:
    """What a layer makes by the settings, as its state names it, and where Google answers for it.

    Slices that people name are in it; members of fleets, of which there may be a thousand, are not.
    """
    if layer == "storage":
        bucket = settings.storage.bucket_name
        accounts = [names.service_account_id(settings)]
        if settings.storage.controller_account_id:
            accounts.append(names.controller_account_id(settings))
        return {
            bucket: f"https://storage.googleapis.com/storage/v1/b/{bucket}",
            **{account: f"https://iam.googleapis.com/v1/{account}" for account in accounts},
        }
    if layer == "tpu":
        slices = [one for one in nodes.nodes(settings) if one.member is None]
        ids = [names.node_id(settings.gcp.project, one.zone, one.name) for one in slices]
        return {id_: f"https://tpu.googleapis.com/v2/{id_}" for id_ in ids}
    ids = []
    if layer == "data" and settings.data.snapshot:
        ids = [names.disk_id(settings, zone) for zone in nodes.zones(settings)]
    if layer == "network" and not settings.network.existing_network:
        subnets = [names.subnet_id(settings, region) for region in nodes.regions(settings)]
        ids = [names.network_id(settings), *subnets]
    return {id_: f"{_COMPUTE}/{id_}" for id_ in ids}

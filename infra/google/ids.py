"""Forms of Google Cloud resource ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

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


def of_compute(ids: Iterable[str]) -> dict[str, str]:
    """Ids of Compute Engine, each with the URL where Google answers for it."""
    return {id_: f"{_COMPUTE}/{id_}" for id_ in ids}

"""The resource types that the stand-in knows, one small file each."""

from __future__ import annotations

from rehearsal.standin.lifecycle import Resource
from rehearsal.standin.types.bucket import BUCKET
from rehearsal.standin.types.bucket_object import BUCKET_OBJECT
from rehearsal.standin.types.custom_role import CUSTOM_ROLE
from rehearsal.standin.types.disk import DISK
from rehearsal.standin.types.firewall import FIREWALL
from rehearsal.standin.types.iam_member import ACCOUNT_IAM_MEMBER, BUCKET_IAM_MEMBER, PROJECT_IAM_MEMBER
from rehearsal.standin.types.kms import CRYPTO_KEY, KEY_RING
from rehearsal.standin.types.network import NETWORK
from rehearsal.standin.types.project_service import PROJECT_SERVICE
from rehearsal.standin.types.router import ROUTER
from rehearsal.standin.types.router_nat import ROUTER_NAT
from rehearsal.standin.types.service_account import ACCOUNT
from rehearsal.standin.types.subnetwork import SUBNETWORK
from rehearsal.standin.types.tpu_vm import V2_VM

TYPES: dict[str, Resource] = {
    resource.table.token: resource
    for resource in (
        NETWORK,
        SUBNETWORK,
        ROUTER,
        ROUTER_NAT,
        FIREWALL,
        DISK,
        BUCKET,
        BUCKET_IAM_MEMBER,
        BUCKET_OBJECT,
        ACCOUNT,
        ACCOUNT_IAM_MEMBER,
        PROJECT_SERVICE,
        PROJECT_IAM_MEMBER,
        CUSTOM_ROLE,
        KEY_RING,
        CRYPTO_KEY,
        V2_VM,
    )
}

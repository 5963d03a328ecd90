"""Roles → permissions, as far as the emulated methods require them.

Source: https://cloud.google.com/iam/docs/roles-permissions, read for the roles below. A pattern ends in
`*`; a role's list holds the permissions that emulated methods check, not all that Google lists.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache

from rehearsal.cloud.core.errors import NotEmulatedError, bad_request

_READ_ALL = ("*.get", "*.list", "*.getIamPolicy", "*.listEffectiveTags")
_OBJECT_READ = ("storage.objects.get", "storage.objects.list")
_FOLDERS = ("storage.multipartUploads.*", "storage.folders.*", "storage.managedFolders.*")
_FOLDERS_READ = tuple(
    f"storage.{kind}.{verb}" for kind in ("folders", "managedFolders") for verb in ("get", "list")
)
_OBJECT_WRITE = (
    "storage.objects.create", "storage.objects.delete", "storage.objects.move", "storage.objects.restore",
    "storage.objects.update", *_FOLDERS,
)  # fmt: skip
_BUCKET_OWNER = (
    "storage.buckets.get", "storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy",
    "storage.buckets.update", "storage.anywhereCaches.*", *_FOLDERS, "storage.objects.create",
    "storage.objects.delete", "storage.objects.list", "storage.objects.move", "storage.objects.restore",
)  # fmt: skip

# Who owns a project may let himself be a service account; he isn't it already.
_NO_CREDENTIALS = (
    "!iam.serviceAccounts.getAccessToken", "!iam.serviceAccounts.getOpenIdToken",
    "!iam.serviceAccounts.sign*",
)  # fmt: skip

_PROJECT = "resourcemanager.projects.get"
_USAGE = (_PROJECT, "serviceusage.quotas.get", "serviceusage.services.get", "serviceusage.services.list")
_OPERATIONS = (
    *_USAGE, "compute.projects.get", "compute.regions.*", "compute.zones.*",
    "compute.*Operations.get", "compute.*Operations.list",
)  # fmt: skip
_LOGIN = (
    *_USAGE, "compute.instances.get", "compute.instances.list", "compute.instances.osLogin",
    "compute.projects.get",
)  # fmt: skip
_ARTIFACTS_READ = (
    "resourcemanager.projects.get", "artifactregistry.*.get", "artifactregistry.*.list",
    "artifactregistry.files.download", "artifactregistry.repositories.downloadArtifacts",
)  # fmt: skip

ROLES: dict[str, tuple[str, ...]] = {
    # The basic roles hold no storage.objects.*: their members reach objects through the legacy roles
    # that a new bucket grants to projectOwner, projectEditor and projectViewer.
    "roles/owner": ("!storage.objects.*", *_NO_CREDENTIALS, "*"),
    "roles/editor": (
        "!storage.objects.*", *_NO_CREDENTIALS, "!iam.roles.create", "!iam.roles.delete",
        "!iam.roles.undelete", "!iam.roles.update", "!cloudkms.cryptoKeyVersions.use*", "!*.setIamPolicy",
        "!iap.*", "!storage.buckets.getIamPolicy", "!storage.buckets.update", "*",
    ),
    "roles/viewer": ("!storage.objects.*", "!storage.buckets.get*", *_READ_ALL),
    "roles/billing.admin": ("billing.*",),
    "roles/browser": ("resourcemanager.projects.get", "resourcemanager.projects.getIamPolicy"),
    "roles/storage.admin": (_PROJECT, "storage.*"),
    "roles/storage.bucketViewer": ("storage.buckets.get", "storage.buckets.list"),
    "roles/storage.insightsCollectorService": ("storage.buckets.get", "storage.objects.list"),
    "roles/storage.legacyBucketOwner": _BUCKET_OWNER,
    "roles/storage.legacyBucketReader": (
        "storage.buckets.get", "storage.objects.list", "storage.multipartUploads.list", *_FOLDERS_READ,
    ),
    "roles/storage.legacyBucketWriter": (
        "storage.buckets.get", "storage.objects.create", "storage.objects.delete", "storage.objects.list",
        *_FOLDERS,
    ),
    "roles/storage.legacyObjectOwner": (
        "storage.objects.get", "storage.objects.update", "storage.objects.getIamPolicy",
        "storage.objects.setIamPolicy",
    ),
    "roles/storage.legacyObjectReader": ("storage.objects.get",),
    "roles/storage.objectAdmin": (_PROJECT, "storage.objects.*", *_FOLDERS),
    "roles/storage.objectCreator": (
        _PROJECT, "storage.objects.create", "storage.multipartUploads.*", "storage.folders.create",
    ),
    "roles/storage.objectUser": (_PROJECT, *_OBJECT_READ, *_OBJECT_WRITE),
    "roles/storage.objectViewer": (_PROJECT, *_OBJECT_READ, *_FOLDERS_READ),
    "roles/logging.logWriter": ("logging.logEntries.create", "logging.logEntries.route"),
    "roles/logging.viewer": (_PROJECT, "logging.logEntries.list", "logging.logs.list", "logging.buckets.get"),
    "roles/monitoring.metricWriter": (
        "monitoring.metricDescriptors.*", "monitoring.monitoredResourceDescriptors.*",
        "monitoring.timeSeries.create",
    ),
    "roles/monitoring.viewer": (
        _PROJECT, "monitoring.metricDescriptors.get", "monitoring.metricDescriptors.list",
        "monitoring.timeSeries.list",
    ),
    "roles/tpu.admin": ("tpu.*", "resourcemanager.projects.get"),
    "roles/tpu.viewer": (_PROJECT, "tpu.*.get", "tpu.*.list"),
    "roles/tpu.serviceAgent": (
        "tpu.*", "compute.networks.use", "compute.subnetworks.use", "compute.disks.useReadOnly",
    ),
    "roles/compute.admin": (*_USAGE, "compute.*"),
    "roles/compute.viewer": (*_USAGE, "compute.*.get", "compute.*.list", "compute.*.getIamPolicy"),
    "roles/compute.networkAdmin": (
        *_OPERATIONS, "compute.networks.*", "compute.subnetworks.*", "compute.routers.*",
        "compute.addresses.*", "compute.globalAddresses.*", "compute.firewalls.get",
        "compute.firewalls.list", "compute.instances.get", "compute.instances.list",
    ),
    "roles/compute.networkUser": (
        *_USAGE, "compute.networks.get", "compute.networks.list", "compute.networks.use",
        "compute.networks.useExternalIp", "compute.subnetworks.get", "compute.subnetworks.list",
        "compute.subnetworks.use", "compute.subnetworks.useExternalIp", "compute.addresses.get",
        "compute.addresses.list", "compute.routers.get", "compute.routers.list", "compute.firewalls.get",
        "compute.firewalls.list", "compute.regions.*", "compute.zones.*", "compute.projects.get",
    ),
    "roles/compute.securityAdmin": (
        *_OPERATIONS, "compute.firewalls.*", "compute.networks.updatePolicy", "compute.networks.get",
        "compute.networks.list", "compute.subnetworks.get", "compute.subnetworks.list",
        "compute.routers.get", "compute.routers.list", "compute.instances.list",
    ),
    "roles/compute.osLogin": _LOGIN,
    "roles/compute.osAdminLogin": (*_LOGIN, "compute.instances.osAdminLogin"),
    "roles/compute.storageAdmin": (
        *_OPERATIONS, "compute.disks.*", "compute.snapshots.*", "compute.diskTypes.*",
    ),
    "roles/artifactregistry.reader": _ARTIFACTS_READ,
    "roles/artifactregistry.writer": (
        *_ARTIFACTS_READ, "artifactregistry.repositories.uploadArtifacts", "artifactregistry.files.upload",
        "artifactregistry.tags.create", "artifactregistry.tags.update",
    ),
    "roles/iap.tunnelResourceAccessor": (
        "iap.tunnelInstances.accessViaIAP", "iap.tunnelDestGroups.accessViaIAP",
    ),
    "roles/iam.roleAdmin": ("iam.roles.*", "resourcemanager.projects.get*"),
    "roles/iam.roleViewer": ("iam.roles.get", "iam.roles.list", "resourcemanager.projects.get*"),
    "roles/iam.serviceAccountAdmin": (
        _PROJECT, "iam.serviceAccounts.create", "iam.serviceAccounts.delete", "iam.serviceAccounts.get",
        "iam.serviceAccounts.getIamPolicy", "iam.serviceAccounts.list", "iam.serviceAccounts.setIamPolicy",
        "iam.serviceAccounts.undelete", "iam.serviceAccounts.update",
    ),
    "roles/iam.serviceAccountUser": (
        _PROJECT, "iam.serviceAccounts.actAs", "iam.serviceAccounts.get", "iam.serviceAccounts.list",
    ),
    "roles/iam.serviceAccountTokenCreator": (
        "iam.serviceAccounts.getAccessToken", "iam.serviceAccounts.getOpenIdToken",
        "iam.serviceAccounts.signBlob", "iam.serviceAccounts.signJwt",
    ),
    "roles/iam.workloadIdentityUser": (
        "iam.serviceAccounts.getAccessToken", "iam.serviceAccounts.getOpenIdToken",
    ),
    "roles/serviceusage.serviceUsageAdmin": ("serviceusage.*",),
    "roles/serviceusage.serviceUsageConsumer": (
        "serviceusage.quotas.get", "serviceusage.services.get", "serviceusage.services.list",
        "serviceusage.services.use",
    ),
    "roles/cloudkms.admin": (_PROJECT, "!cloudkms.cryptoKeyVersions.use*", "cloudkms.*"),
    "roles/cloudkms.viewer": (_PROJECT, "cloudkms.*.get", "cloudkms.*.list"),
    "roles/cloudkms.cryptoKeyEncrypterDecrypter": (
        _PROJECT, "cloudkms.cryptoKeyVersions.useToEncrypt", "cloudkms.cryptoKeyVersions.useToDecrypt",
    ),
    "roles/cloudkms.cryptoKeyDecrypter": (_PROJECT, "cloudkms.cryptoKeyVersions.useToDecrypt"),
    "roles/resourcemanager.projectIamAdmin": (
        "resourcemanager.projects.get", "resourcemanager.projects.getIamPolicy",
        "resourcemanager.projects.setIamPolicy",
    ),
}  # fmt: skip


# Services of whose roles all names are known, so that no other exists; of the rest, what isn't above may.
_ALL_NAMES = {"tpu": {"admin", "viewer", "serviceAgent", "xpnAgent"}}
_PREDEFINED = re.compile(r"roles/([a-z]\w*)\.([\w.]+)")


def check(role: str) -> None:
    """ApiError 400 if Google has no predefined role of that name; NotEmulatedError if it may have."""
    if role in ROLES:
        return
    match = _PREDEFINED.fullmatch(role)
    if match is None or "_withcond_" in role or match[2] not in _ALL_NAMES.get(match[1], {match[2]}):
        raise bad_request(f"Role {role} is not supported for this resource.")
    raise NotEmulatedError(f"Role {role}")


@cache
def named() -> frozenset[str]:
    """Return the permissions that roles hold by name, and not only as part of a pattern."""
    return frozenset(
        pattern.removeprefix("!") for patterns in ROLES.values() for pattern in patterns if "*" not in pattern
    )


@cache
def grants(role: str, permission: str) -> bool:
    """Return True if the role holds the permission. The first matching pattern decides; `!` denies."""
    for pattern in ROLES[role]:
        if fnmatchcase(permission, pattern.removeprefix("!")):
            return not pattern.startswith("!")
    return False

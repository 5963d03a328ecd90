"""Comparisons by which the provider takes two values for one: Terraform's DiffSuppressFuncs, by their names.

Each gets the program's value, or None, and the last known one. Those of `PLAIN` never apply to what the
stand-in compares, or say no more than its own comparison does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

Same = Callable[[Any, Any], bool]


def basename(link: Any) -> Any:
    """Last part of a link or path: `us-east5-b` from `https://…/zones/us-east5-b`."""
    return link.rsplit("/", 1)[-1] if isinstance(link, str) else link


def same_basename(wanted: Any, current: Any) -> bool:
    """Return True if two values end in the same part, e.g. a region and its link."""
    return bool(basename(wanted) == basename(current))


def same_path(wanted: Any, current: Any) -> bool:
    """Return True if two links have the same path below the version of an API."""
    if not (isinstance(wanted, str) and isinstance(current, str)):
        return bool(wanted == current)
    return _relative(wanted) == _relative(current)


def same_link(wanted: Any, current: Any) -> bool:
    """Return True if a bare name is the last part of a link, or two links have the same path."""
    if isinstance(wanted, str) and "/" not in wanted:
        return same_basename(wanted, current)
    return same_path(wanted, current)


def _relative(link: str) -> str:
    path = urlsplit(link).path
    return path[path.index("projects/") :] if "projects/" in path else path


def _same_case(wanted: Any, current: Any) -> bool:
    return str(wanted or "").upper() == str(current or "").upper()


def _same_member(wanted: Any, current: Any) -> bool:
    """Return True if two members are one: only principals of identity pools differ by their case."""
    if any(str(value).startswith("principal") for value in (wanted, current)):
        return bool(wanted == current)
    return _same_case(wanted, current)


def _same_duration(wanted: Any, current: Any) -> bool:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    seconds = [
        float(text[:-1]) * units[text[-1]] if text[:-1].isdigit() and text[-1:] in units else text
        for text in (str(wanted or ""), str(current or ""))
    ]
    return seconds[0] == seconds[1]


def _same_time(wanted: Any, current: Any) -> bool:
    """Return True if two times are one: `03:00` and `3:00`."""
    return str(wanted or "").zfill(5) == str(current or "").zfill(5)


def _same_reducer(wanted: Any, current: Any) -> bool:
    return {wanted or "REDUCE_NONE", current or "REDUCE_NONE"} in ({wanted}, {"REDUCE_NONE"})


def _same_variables(wanted: Any, current: Any) -> bool:
    """Return True if they differ in no more than Google's own variable."""
    own = {
        key: value
        for key, value in (current or {}).items()
        if key != "LOG_EXECUTION_ID" or key in (wanted or {})
    }
    return bool(own == (wanted or {}))


def _same_labels(wanted: Any, current: Any) -> bool:
    """Return True if machines' labels differ in no more than GKE's own."""
    own = {k: v for k, v in (current or {}).items() if not k.startswith("goog-gke") or k in (wanted or {})}
    return bool(own == (wanted or {}))


def _same_image(wanted: Any, current: Any) -> bool:
    """Return True for an image family and any image in it: `debian-12` and `debian-12-v20260801`."""
    name, image = basename(wanted), str(basename(current))
    return same_link(wanted, current) or image == name or image.startswith(f"{name}-")


def _same_dashboard(wanted: Any, current: Any) -> bool:
    """Return True if two texts describe one dashboard, apart from Google's additions to the second."""
    return bool(_without(json.loads(current or "{}"), given := json.loads(wanted or "{}")) == given)


def _without(current: Any, wanted: Any) -> Any:
    if isinstance(current, Mapping) and isinstance(wanted, Mapping):
        return {key: _without(value, wanted[key]) for key, value in current.items() if key in wanted}
    if isinstance(current, list) and isinstance(wanted, list) and len(current) == len(wanted):
        return [_without(*pair) for pair in zip(current, wanted, strict=True)]
    return current


def _same_switch(wanted: Any, current: Any) -> bool:
    """Return True if the program has no block, and Google's has its switch off."""
    return wanted is None and isinstance(current, Mapping) and not current.get("enabled")


def same_or(unset: str) -> Same:
    """Return a comparison in which nothing means `unset`."""
    return lambda wanted, current: (wanted or unset) == (current or unset)


FUNCTIONS: Mapping[str, Same] = {
    "artifactregistry.durationDiffSuppress": _same_duration,
    "cloudfunctions2.environmentVariablesDiffSuppress": _same_variables,
    "cloudscheduler.LastSlashDiffSuppress": lambda new, old: str(new).rstrip("/") == str(old).rstrip("/"),
    "compute.AlwaysDiffSuppress": lambda *_: True,
    "compute.DiskImageDiffSuppress": _same_image,
    "compute.sourceDiskDiffSuppress": same_path,
    "container.Rfc3339TimeDiffSuppress": _same_time,
    "container.containerNodePoolResourceLabelsDiffSuppress": _same_labels,
    "kms.kmsCryptoKeyRingsEquivalent": same_path,
    "monitoring.crossSeriesReducerDiffSuppress": _same_reducer,
    "monitoring.monitoringDashboardDiffSuppress": _same_dashboard,
    "resourcemanager.CompareProjectName": same_basename,
    "storage.StorageBucketDiffSuppress": same_basename,
    "storage.hierachicalNamespaceDiffSuppress": _same_switch,
    "tpgiamresource.iamMemberCaseDiffSuppress": _same_member,
    "tpgresource.CaseDiffSuppress": _same_case,
    "tpgresource.CidrOrSizeDiffSuppress": lambda new, old: (
        new == old or (str(new).startswith("/") and str(old).endswith(str(new)))
    ),
    "tpgresource.CompareResourceNames": same_basename,
    "tpgresource.CompareSelfLinkOrResourceName": same_link,
    "tpgresource.CompareSelfLinkRelativePaths": same_path,
}

PLAIN = frozenset(
    {
        # Decided by other properties than the one that is compared; no stack here gives both.
        "artifactregistry.emptyMavenConfigDiffSuppress",
        "artifactregistry.upstreamPoliciesDiffSuppress",
        "billingbudgets.checkValAndDefaultStringSuppress.func1",  # in types/records.py
        "cloudscheduler.authHeaderDiffSuppress",
        "compute.AddressIpCollectionDiffSuppress",
        "compute.ComparePartnerMetadataDiff",
        "compute.ComputeInstanceMinCpuPlatformEmptyOrAutomaticDiffSuppress",
        "compute.DisksForceAttachDiffSuppress",
        "compute.IpCidrRangeDiffSuppress",
        "compute.IpDiffSuppress",
        "compute.diffSuppressEnableLogging",
        "compute.diffSuppressSourceRanges",
        "compute.ipv6RepresentationDiffSuppress",
        "compute.serviceAccountDiffSuppress",
        "container.BinaryAuthorizationDiffSuppress",
        "container.DatabaseEncryptionSuppress",
        "container.SecretManagerCfgSuppress",
        "container.SecretSyncCfgSuppress",
        "container.containerClusterAddedScopesSuppress",
        "container.containerClusterNetworkPolicyDiffSuppress",
        "container.containerClusterPrivateClusterConfigSuppress",  # in types/gke.py
        "container.containerNodePoolLabelsSuppress",  # of a sandbox's
        "container.init.func1",  # of an Autopilot cluster
        "container.init.func2",  # of a fleet's project
        "container.init.func3",  # of confidential nodes
        "container.podSecurityPolicyCfgSuppress",
        "container.rfc5545RecurrenceDiffSuppress",
        "container.sandboxTypeDiffSuppress",
        "container.suppressDiffForClusterDnsScope",
        "storage.ResourceStorageBucket.func3",  # autoclass without its class
        "storage.ResourceStorageBucket.func4",
        "storage.ResourceStorageBucket.func5",
        "storage.ResourceStorageBucket.func7",
        "storage.ResourceStorageBucketObject.func1",  # in types/bucket_object.py
        "tpgresource.CompareCryptoKeyVersions",
        "tpgresource.DurationDiffSuppress",
        "tpgresource.EmptyOrDefaultStringSuppress.func1",  # of a block
        "tpuv2.tpuServiceAccountAddedScopesSuppress",
    }
)

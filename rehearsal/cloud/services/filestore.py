"""Filestore: instances with their shares and addresses, as records: no machine serves what is in them.

Google's roles for them are roles/file.editor and roles/file.viewer.

https://cloud.google.com/filestore/docs/reference/rest/v1/projects.locations.instances
"""

from __future__ import annotations

import ipaddress

from rehearsal.cloud.collections import KEEP, Change, Collection, Entry, Reference
from rehearsal.cloud.collections.checks import NAME
from rehearsal.cloud.core.errors import ApiError, bad_request

# Documentation addresses (RFC 5737): nothing answers there, and nothing is meant to.
_ADDRESSES = ipaddress.IPv4Network("192.0.2.0/24")
# GiB that a share may have, by tier: https://cloud.google.com/filestore/docs/service-tiers
_GIB = {
    "BASIC_HDD": (1024, 65_434),
    "BASIC_SSD": (2560, 65_434),
    "ZONAL": (1024, 102_400),
    "REGIONAL": (1024, 102_400),
}


def _check(change: Change) -> None:
    """Refuse an instance without its one share or its one network; choose its address."""
    body = change.body
    if len(body["fileShares"]) != 1 or len(body["networks"]) != 1:
        raise bad_request("An instance must have exactly one file share and one network.")
    tier, size = body["tier"], int(body["fileShares"][0].get("capacityGb", 0))
    if tier not in _GIB:
        raise bad_request(f"The tier {tier} is not supported.")
    low, high = _GIB[tier]
    if not low <= size <= high:
        raise bad_request(
            f"The capacity of a share of {tier} must be between {low} and {high} GB, not {size}."
        )
    network = body["networks"][0]
    if change.old:
        if size < int(change.old["fileShares"][0]["capacityGb"]) and tier.startswith("BASIC"):
            raise bad_request("The capacity of a basic tier's share cannot be reduced.")
        network |= {key: value for key, value in change.old["networks"][0].items() if key not in network}
        return
    network.setdefault("connectMode", "DIRECT_PEERING")
    instances = (item for name, item in change.world.directory.items() if name.startswith("//file."))
    used = {item["networks"][0]["ipAddresses"][0] for item in instances if item.get("networks")}
    free = next((str(address) for address in _ADDRESSES.hosts() if str(address) not in used), None)
    if free is None:
        raise ApiError(429, "RESOURCE_EXHAUSTED", "No address range is free in the network.")
    network["ipAddresses"] = [free]


ENTRY = Entry(
    "file",
    ("v1", "v1beta1"),
    (
        Collection(
            "file.projects.locations.instances",
            pattern=NAME,
            qualified=True,
            required=("tier", "fileShares", "networks"),
            creating={"state": "CREATING"},
            ready={"state": "READY"},
            ending={"state": "DELETING"},
            immutable=("tier", "networks"),
            references=(
                Reference(
                    "networks.network",
                    ("compute.networks",),
                    on_delete=KEEP,
                    short="projects/{project}/global/networks/{id}",
                ),
            ),
            check=_check,
            seconds=180.0,
            change_seconds=30.0,
        ),
    ),
    package="google.cloud.common",
)

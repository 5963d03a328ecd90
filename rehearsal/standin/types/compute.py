"""Compute Engine's plain types: networks, subnetworks, routers, firewalls, addresses, snapshots, policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.standin.field import Send
from rehearsal.standin.generate import Exceptions
from rehearsal.standin.lifecycle import Change, Context, Resource
from rehearsal.standin.table import (
    ALWAYS,
    BLOCK_SET,
    COMPUTE,
    COMPUTED,
    FIXED,
    GIVEN,
    LOCAL,
    SET,
    Table,
    Update,
    at,
    basename,
    same_basename,
    same_link,
)


def v1_link(link: str | None) -> str | None:
    """A compute link as the official provider stores it: beta rewritten to v1."""
    return link.replace("/compute/beta/", "/compute/v1/") if link else link


def path_to(collection: str) -> Any:
    """Encodes a link, path or bare name as `projects/P/global/COLLECTION/N`: odd for places, but recorded."""

    def encode(value: str, planned: Mapping[str, Any]) -> str:
        if "projects/" in value:
            return "projects/" + value.rpartition("projects/")[2]
        return f"projects/{planned['project']}/global/{collection}/{basename(value)}"

    return encode


def _place(collection: str) -> dict[str, Any]:
    return {"encode": path_to(collection), "decode": basename, "same": same_basename, **COMPUTED}


LINK: Mapping[str, Any] = {"same": same_link, "decode": v1_link}
ONLY_FALSE: Mapping[str, Any] = {**LOCAL, "only": False}
EXCEPTIONS: Exceptions = {
    "selfLink": {"decode": v1_link},
    "region": _place("regions"),
    "zone": _place("zones"),
    "subnetwork": LINK,
    "network": {**LINK, "encode": path_to("networks")},
}


def compute(token: str, item: str, updates: tuple[Update, ...], exceptions: Exceptions, **more: Any) -> Table:
    """A type of Compute Engine's; `item` stands under its project."""
    item = f"projects/{{project}}/{item}/{{name}}"
    both = {**EXCEPTIONS, **{key: {**EXCEPTIONS.get(key, {}), **one} for key, one in exceptions.items()}}
    return Table(f"gcp:compute/{token}", COMPUTE, item, updates, both, **more)


SET_LABELS = Update("labels", "POST", "/setLabels", extra={"labelFingerprint": "{labelFingerprint}"})


def _log_config(block: dict[str, Any] | None, _planned: Mapping[str, Any]) -> dict[str, Any]:
    """The block's presence turns logs on, its absence turns them off."""
    return {"enable": False} if block is None else {**block, "enable": True}


LOG_CONFIG = {
    **ALWAYS, "encode": _log_config, "decode": lambda raw: raw if raw and raw.get("enable", True) else None,
}  # fmt: skip


class Address(Resource):
    """An address, whose labels are sent a second time once it is made."""

    def after_create(self, context: Context, id_: str, planned: Mapping[str, Any]) -> dict[str, Any] | None:
        """Send the labels with their fingerprint, then read the address."""
        rest = self.get(context, planned) or {}
        if planned["effectiveLabels"]:
            state = {"labelFingerprint": rest.get("labelFingerprint", "")}
            self.patch(context, SET_LABELS, Change(planned, planned, state, {"labels"}))
        return self.read(context, id_, planned)


NETWORK = Resource(
    compute(
        "network:Network",
        "global/networks",
        (
            Update(
                "networkFirewallPolicyEnforcementOrder routingMode bgpBestPathSelectionMode"
                " bgpAlwaysCompareMed bgpInterRegionCost deleteBgpAlwaysCompareMed"
            ),
        ),
        {
            "autoCreateSubnetworks": {**GIVEN, "default": True},
            "deleteDefaultRoutesOnCreate": {**ONLY_FALSE, **FIXED, "default": False},
            "routingMode": at("routingConfig.routingMode"),
            "bgpBestPathSelectionMode": at("routingConfig.bgpBestPathSelectionMode"),
            "bgpAlwaysCompareMed": at("routingConfig.bgpAlwaysCompareMed"),
            "bgpInterRegionCost": at("routingConfig.bgpInterRegionCost"),
            "deleteBgpAlwaysCompareMed": {**at("routingConfig.deleteBgpAlwaysCompareMed"), **ALWAYS},
            "networkId": at("id"),
            "params": LOCAL,
        },
    )
)

SUBNETWORK = Resource(
    compute(
        "subnetwork:Subnetwork",
        "regions/{region}/subnetworks",
        (
            Update("ipCidrRange", "POST", "/expandIpCidrRange"),
            Update("privateIpGoogleAccess", "POST", "/setPrivateIpGoogleAccess"),
            Update("stackType", fingerprint=True),
            Update("logConfig", fingerprint=True),
            Update("secondaryIpRanges", fingerprint=True),
        ),
        {
            "privateIpGoogleAccess": {"send_update": Send.ALWAYS},
            "logConfig": LOG_CONFIG,
            "logConfig.aggregationInterval": {"default": "INTERVAL_5_SEC"},
            "logConfig.flowSampling": {"default": 0.5, **GIVEN},
            "logConfig.metadata": {"default": "INCLUDE_ALL_METADATA"},
            "logConfig.metadataFields": {**SET, **ALWAYS},
            "logConfig.filterExpr": {"default": "true"},
            "secondaryIpRanges": GIVEN,
            "subnetworkId": at("id"),
        },
    )
)

ROUTER = Resource(
    compute(
        "router:Router",
        "regions/{region}/routers",
        (Update("bgp description"),),
        {
            "bgp.advertisedGroups": ALWAYS,
            "bgp.advertisedIpRanges": {**BLOCK_SET, **ALWAYS},
            "bgp.advertiseMode": {"default": "DEFAULT"},
            "bgp.keepaliveInterval": {"default": 20},
        },
    )
)

FIREWALL = Resource(
    compute(
        "firewall:Firewall",
        "global/firewalls",
        (
            Update(
                "allows denies description destinationRanges disabled logConfig network priority sourceRanges"
                " sourceServiceAccounts sourceTags targetServiceAccounts targetTags"
            ),
        ),
        {
            "allows": {**BLOCK_SET, **at("allowed"), "send_update": Send.ALWAYS},
            "denies": {**BLOCK_SET, **at("denied"), "send_update": Send.ALWAYS},
            "*.protocol": at("IPProtocol"),
            "description disabled": {"send_update": Send.ALWAYS},
            "destinationRanges source* target*": {**SET, "send_update": Send.ALWAYS},
            "logConfig": LOG_CONFIG,
            "network": FIXED,
            "priority": {"default": 1000, **ALWAYS},
            "direction": {"one_of": ("INGRESS", "EGRESS")},
        },
    )
)

ADDRESS = Address(
    compute("address:Address", "regions/{region}/addresses", (SET_LABELS,), {"addressId": at("id")})
)

SNAPSHOT = Resource(
    compute(
        "snapshot:Snapshot",
        "global/snapshots",
        (SET_LABELS,),
        {"snapshotId": at("id"), "sourceDisk": LINK, "zone": {"rest": "zone"}},
        collection="projects/{project}/zones/{zone}/disks/{sourceDisk}/createSnapshot",
    )
)

RESOURCE_POLICY = Resource(
    compute(
        "resourcePolicy:ResourcePolicy",
        "regions/{region}/resourcePolicies",
        (Update("name description snapshotSchedulePolicy diskConsistencyGroupPolicy"),),
        {"name": FIXED, "diskConsistencyGroupPolicy": ALWAYS},
    )
)

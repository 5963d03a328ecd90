"""Compute Engine's plain types: networks, subnetworks, routers, firewalls."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any, TypeVar

from rehearsal.providers.gcp.generate import Exceptions, expanded
from rehearsal.providers.gcp.lifecycle import Resource
from rehearsal.providers.gcp.suppress import basename
from rehearsal.providers.gcp.table import COMPUTE, Update

R = TypeVar("R", bound=Resource)


def v1_link(link: str | None) -> str | None:
    """Return a compute link as the official provider stores it: beta rewritten to v1."""
    return link.replace("/compute/beta/", "/compute/v1/") if link else link


def path_to(collection: str) -> Any:
    """Return an encoder of links, paths and bare names to `projects/P/global/COLLECTION/N`, as recorded."""

    def encode(value: str, planned: Mapping[str, Any]) -> str:
        if "projects/" in value:
            return "projects/" + value.rpartition("projects/")[2]
        return f"projects/{planned['project']}/global/{collection}/{basename(value)}"

    return encode


def _place(collection: str) -> dict[str, Any]:
    return {"encode": path_to(collection), "decode": basename}


LINK: Mapping[str, Any] = {"decode": v1_link}
EXCEPTIONS: Exceptions = {
    "selfLink": {"decode": v1_link},
    "region": _place("regions"),
    "zone": _place("zones"),
    "subnetwork": LINK,
    "network": {**LINK, "encode": path_to("networks")},
}


def compute(
    kind: type[R], token: str, item: str, updates: tuple[Update, ...], exceptions: Exceptions, **more: Any
) -> R:
    """Return a type of Compute Engine's; `item` is below its project."""
    item = f"projects/{{project}}/{item}/{{name}}"
    own = {
        key: {**expanded(EXCEPTIONS.get(key, "")), **expanded(exception)}
        for key, exception in exceptions.items()
    }
    return kind(f"gcp:compute/{token}", COMPUTE, item, updates, {**EXCEPTIONS, **own}, **more)


SET_LABELS = Update("labels", "POST", "/setLabels", extra={"labelFingerprint": "{labelFingerprint}"})


def _log_config(block: dict[str, Any] | None, _planned: Mapping[str, Any]) -> dict[str, Any]:
    """Turn logs on if the block is present, off if it is absent."""
    return {"enable": False} if block is None else {**block, "enable": True}


def _is_smaller(wanted: str, current: str) -> bool:
    """Return True unless a range contains the current one: no subnet shrinks."""
    return not ip_network(current).subnet_of(ip_network(wanted))  # type: ignore[arg-type]


LOG_CONFIG = {
    "is": "always",
    "encode": _log_config,
    "decode": lambda raw: raw if raw and raw.get("enable", True) else None,
}


NETWORK = compute(
    Resource,
    "network:Network",
    "global/networks",
    (
        Update(
            "networkFirewallPolicyEnforcementOrder routingMode bgpBestPathSelectionMode"
            " bgpAlwaysCompareMed bgpInterRegionCost deleteBgpAlwaysCompareMed"
        ),
        Update("mtu", fingerprint=True),
    ),
    {
        "autoCreateSubnetworks": "given",
        "deleteDefaultRoutesOnCreate": "local only=false",
        "routingMode": "at=routingConfig.routingMode",
        "bgpBestPathSelectionMode": "at=routingConfig.bgpBestPathSelectionMode",
        "bgpAlwaysCompareMed": "at=routingConfig.bgpAlwaysCompareMed",
        "bgpInterRegionCost": "at=routingConfig.bgpInterRegionCost",
        "deleteBgpAlwaysCompareMed": "at=routingConfig.deleteBgpAlwaysCompareMed always",
        "networkId": "at=id",
        "params": "local",
    },
)

SUBNETWORK = compute(
    Resource,
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
        "ipCidrRange": {"replaces_if": _is_smaller},
        "privateIpGoogleAccess": "updated",
        "logConfig": LOG_CONFIG,
        "logConfig.flowSampling": "given",
        "logConfig.metadataFields": "always",
        "secondaryIpRanges": "given",
        "subnetworkId": "at=id",
    },
)

ROUTER = compute(
    Resource,
    "router:Router",
    "regions/{region}/routers",
    (Update("bgp description"),),
    {
        "bgp.advertisedGroups": "always",
        "bgp.advertisedIpRanges": "always",
    },
)

FIREWALL = compute(
    Resource,
    "firewall:Firewall",
    "global/firewalls",
    (
        Update(
            "allows denies description destinationRanges disabled logConfig network priority sourceRanges"
            " sourceServiceAccounts sourceTags targetServiceAccounts targetTags"
        ),
    ),
    {
        "allows": "at=allowed updated",
        "denies": "at=denied updated",
        "*.protocol": "at=IPProtocol",
        "description disabled": "updated",
        "destinationRanges source* target*": "updated",
        "logConfig": LOG_CONFIG,
        "priority": "always",
    },
)

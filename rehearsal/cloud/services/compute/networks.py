"""Networks and subnetworks, Cloud Routers with their NATs, firewall rules."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from rehearsal.cloud.collections import Change, Collection, Reference, Verb
from rehearsal.cloud.collections.words import invalid
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError
from rehearsal.cloud.core.operations import compute_link

# https://cloud.google.com/vpc/docs/mtu
MTU_RANGE = (1300, 8896)
# https://cloud.google.com/vpc/docs/subnets#ipv4-ranges: a range has at least 8 addresses.
_LONGEST_PREFIX = 29
_NAT_DEFAULTS = {
    "type": "PUBLIC",
    "endpointTypes": ["ENDPOINT_TYPE_VM"],
    "enableEndpointIndependentMapping": False,
    "autoNetworkTier": "PREMIUM",
}
_PROTOCOLS = {"tcp", "udp", "icmp", "esp", "ah", "sctp", "ipip", "all"}
_PORTS = re.compile(r"\d{1,5}(-\d{1,5})?")
# A resource in a network needs the permission to change the network.
_IN_NETWORK = Reference("network", ("compute.networks",), permission="compute.networks.updatePolicy")


def _check_network(change: Change) -> None:
    low, high = MTU_RANGE
    if not low <= change.body["mtu"] <= high:
        raise invalid("resource.mtu", change.body["mtu"], f"Must be between {low} and {high}.")
    if not change.old:
        if change.body.get("autoCreateSubnetworks") is not False:
            raise NotEmulatedError("A network that isn't of custom mode (autoCreateSubnetworks: false)")
        parent = change.name.rpartition("/")[0]
        change.body["selfLinkWithId"] = compute_link(f"{parent}/{change.body['id']}")


def _show_network(change: Change) -> None:
    users = change.resources.users(change.name)
    change.body["subnetworks"] = [compute_link(user) for user in users if "/subnetworks/" in user]


def _check_subnet(change: Change) -> None:
    body = change.body
    primary = _cidr(body["ipCidrRange"], "resource.ipCidrRange")
    if change.old:
        _check_secondary(change)
    for index, extra in enumerate(body.get("secondaryIpRanges") or ()):
        _cidr(extra["ipCidrRange"], f"resource.secondaryIpRanges[{index}].ipCidrRange")
    body["gatewayAddress"] = str(primary.network_address + 1)
    body["enableFlowLogs"] = bool(body.get("logConfig", {}).get("enable"))
    # Google refuses in the operation; looking now makes the first of two the one that stays.
    for name, existing in change.world.directory.items():
        if name == change.name or "/subnetworks/" not in name or existing["network"] != body["network"]:
            continue
        for cidr in _ranges(body):
            if any(cidr.overlaps(taken) for taken in _ranges(existing)):
                _, _, _, region, _, short = name.split("/")
                place = f"existing subnetwork '{short}' in region '{region}'"
                text = f"Invalid IPCidrRange: {cidr} conflicts with {place}."
                change.finish.append(lambda text=text: _refuse(text))  # type: ignore[misc]


def _check_secondary(change: Change) -> None:
    """ApiError 400 for a secondary range that changes, and for one that comes while another goes.

    https://github.com/hashicorp/terraform-provider-kubernetes/issues/565 and
    https://github.com/hashicorp/terraform-provider-google/issues/2570 have the words;
    https://cloud.google.com/vpc/docs/configure-alias-ip-ranges: ranges are added and removed, not expanded.
    """
    old, new = _secondary(change.old), _secondary(change.body)
    field = "resource.secondaryIpRanges"
    for index, (name, cidr) in enumerate(new.items()):
        if old.get(name, cidr) != cidr:
            why = f"Existing secondary range cannot be modified: {cidr}."
            raise invalid(f"{field}[{index}].ipCidrRange", cidr, why)
    added, removed = (
        ", ".join(ranges[name] for name in ranges if name not in others)
        for ranges, others in ((new, old), (old, new))
    )
    if added and removed:
        both = "Cannot add and remove secondary IP ranges in the same request."
        raise invalid(field, "", f"{both} Added ranges: [{added}]. Removed ranges: [{removed}].")


def _secondary(body: JsonObject) -> dict[str, str]:
    return {item["rangeName"]: item["ipCidrRange"] for item in body.get("secondaryIpRanges") or ()}


def _refuse(text: str) -> None:
    raise ApiError(400, "INVALID_USAGE", text, reason="invalid")


def _expand(change: Change) -> None:
    """Serve subnetworks.expandIpCidrRange: the new range must contain the current one."""
    desired, old = change.sent.get("ipCidrRange", ""), _cidr(change.old["ipCidrRange"], "ipCidrRange")
    if not old.subnet_of(_cidr(desired, "ipCidrRange")):
        raise invalid("ipCidrRange", desired, f"The new range must contain the current one, {old}.")
    change.body["ipCidrRange"] = desired


def _set_private_access(change: Change) -> None:
    change.body["privateIpGoogleAccess"] = bool(change.sent.get("privateIpGoogleAccess"))


def _cidr(text: str, field: str) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as error:
        why = f"Must be a CIDR address range that is contained in RFC 1918: {error}."
        raise invalid(field, text, why) from None
    if network.prefixlen > _LONGEST_PREFIX:
        raise invalid(field, text, f"The prefix length must be at most {_LONGEST_PREFIX}.")
    return network


def _ranges(body: JsonObject) -> Iterator[ipaddress.IPv4Network]:
    yield ipaddress.IPv4Network(body["ipCidrRange"])
    for extra in body.get("secondaryIpRanges") or ():
        yield ipaddress.IPv4Network(extra["ipCidrRange"])


def _check_router(change: Change) -> None:
    """Set the defaults of NATs; ApiError 400 for a name that two of them have."""
    nats = change.body.get("nats", ())
    names = [nat.get("name") for nat in nats]
    for index, nat in enumerate(nats):
        if not nat.get("name") or names.count(nat["name"]) > 1:
            raise invalid("resource.nats", nat.get("name"), "Each NAT needs a name of its own.")
        for key, value in _NAT_DEFAULTS.items():
            nat.setdefault(key, value)
        if "sourceSubnetworkIpRangesToNat" not in nat:
            field = f"resource.nats[{index}].sourceSubnetworkIpRangesToNat"
            raise invalid(field, "", "Required field not specified.")


def _check_firewall(change: Change) -> None:
    """ApiError 400 for what https://cloud.google.com/vpc/docs/firewalls rules out."""
    body = change.body
    sources = body.keys() & {"sourceRanges", "sourceTags", "sourceServiceAccounts"}
    if body["direction"] == "INGRESS" and not sources:
        body["sourceRanges"] = ["0.0.0.0/0"]
    if bool(body.get("allowed")) == bool(body.get("denied")):
        text = "Exactly one of 'allowed' and 'denied' must be specified for a firewall rule."
        raise ApiError(400, "INVALID_ARGUMENT", text, reason="invalid")
    if not 0 <= body["priority"] <= 65535:
        raise invalid("resource.priority", body["priority"], "Must be between 0 and 65535.")
    for field in ("sourceRanges", "destinationRanges"):
        for index, text in enumerate(body.get(field) or ()):
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                where, why = f"resource.{field}[{index}]", f"Must be a valid CIDR range: {error}."
                raise invalid(where, text, why) from None
    for kind in ("allowed", "denied"):
        for index, entry in enumerate(body.get(kind) or ()):
            field, protocol = f"resource.{kind}[{index}]", entry.get("IPProtocol", "")
            if protocol not in _PROTOCOLS and not (protocol.isdigit() and int(protocol) < 256):
                raise invalid(f"{field}.IPProtocol", protocol, "Must be a well known IP protocol or number.")
            for ports in entry.get("ports", ()):
                if not _PORTS.fullmatch(ports) or max(map(int, ports.split("-"))) > 65535:
                    why = "Ports must be an integer between 0 and 65535 or a range."
                    raise invalid(f"{field}.ports", ports, why)


# Lengths of operations: of the order of the real ones, and this project's choice.
COLLECTIONS = (
    Collection(
        "compute.networks",
        defaults={
            "mtu": 1460,
            "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
            "routingConfig": {"routingMode": "REGIONAL", "bgpBestPathSelectionMode": "LEGACY"},
        },
        immutable=("description", "autoCreateSubnetworks"),
        check=_check_network,
        shown=_show_network,
        seconds=12.0,
    ),
    Collection(
        "compute.subnetworks",
        required=("network", "ipCidrRange"),
        defaults={
            "privateIpGoogleAccess": False,
            "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
        },
        immutable=("network", "ipCidrRange", "description"),
        references=(_IN_NETWORK,),
        check=_check_subnet,
        verbs={"expandIpCidrRange": Verb(_expand), "setPrivateIpGoogleAccess": Verb(_set_private_access)},
    ),
    Collection(
        "compute.routers",
        immutable=("network",),
        references=(
            _IN_NETWORK,
            Reference("nats.subnetworks.name", ("compute.subnetworks",)),
            Reference("nats.natIps", ("compute.addresses",)),
        ),
        check=_check_router,
        seconds=6.0,
    ),
    Collection(
        "compute.firewalls",
        defaults={
            "network": "global/networks/default",
            "direction": "INGRESS",
            "priority": 1000,
            "disabled": False,
            "logConfig": {"enable": False},
        },
        immutable=("network", "direction"),
        references=(_IN_NETWORK,),
        check=_check_firewall,
        seconds=8.0,
    ),
)

"""Networks and subnetworks."""

from __future__ import annotations

import copy
import ipaddress
from collections.abc import Callable, Iterator, Mapping

from rehearsal.cloud.compute.registry import (
    Registry,
    check_fingerprint,
    compact,
    fingerprint,
    invalid,
    merge,
    missing,
)
from rehearsal.cloud.operations import compute_link
from rehearsal.cloud.service import ApiError, Call, JsonObject, Method, NotEmulatedError

# https://cloud.google.com/vpc/docs/mtu
MTU_RANGE = (1300, 8896)
# https://cloud.google.com/vpc/docs/subnets#ipv4-ranges: a range has at least 8 addresses.
_LONGEST_PREFIX = 29
# Virtual seconds that an operation takes: of the order of the real ones, and this project's choice.
_NETWORK_S, _SUBNETWORK_S = 12.0, 10.0


class Networks:
    """compute.networks and compute.subnetworks."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def methods(self) -> Mapping[str, Method]:
        """By method id."""
        return {
            "compute.networks.insert": Method(self.insert, "compute.networks.create", self._network),
            "compute.networks.get": Method(self.get, "compute.networks.get", self._network),
            "compute.networks.list": Method(self.list, "compute.networks.list"),
            "compute.networks.patch": Method(self.patch, "compute.networks.update", self._network),
            "compute.networks.delete": Method(self.delete, "compute.networks.delete", self._network),
            "compute.subnetworks.insert": Method(
                self.insert_subnet, "compute.subnetworks.create", self._subnet
            ),
            "compute.subnetworks.get": Method(self.get_subnet, "compute.subnetworks.get", self._subnet),
            "compute.subnetworks.list": Method(self.list_subnets, "compute.subnetworks.list"),
            "compute.subnetworks.patch": Method(
                self.patch_subnet, "compute.subnetworks.update", self._subnet
            ),
            "compute.subnetworks.delete": Method(
                self.delete_subnet, "compute.subnetworks.delete", self._subnet
            ),
            "compute.subnetworks.expandIpCidrRange": Method(
                self.expand, "compute.subnetworks.expandIpCidrRange", self._subnet
            ),
            "compute.subnetworks.setPrivateIpGoogleAccess": Method(
                self.set_private_access, "compute.subnetworks.setPrivateIpGoogleAccess", self._subnet
            ),
        }

    def _network(self, call: Call) -> str:
        name = call.path.get("network") or (call.body or {}).get("name", "")
        return self._registry.path(call, "global", "networks", name)

    def _subnet(self, call: Call) -> str:
        name = call.path.get("subnetwork") or (call.body or {}).get("name", "")
        return self._registry.path(call, "regions", call.path["region"], "subnetworks", name)

    async def insert(self, call: Call) -> JsonObject:
        """compute.networks.insert: custom mode only."""
        sent = call.body or {}
        if sent.get("autoCreateSubnetworks") is not False:
            raise NotEmulatedError("A network in auto mode (autoCreateSubnetworks isn't false)")
        name = self._network(call)
        body: JsonObject = {
            "kind": "compute#network",
            "mtu": 1460,
            "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
            "selfLinkWithId": compute_link(name),
            "routingConfig": {"routingMode": "REGIONAL", "bgpBestPathSelectionMode": "LEGACY"},
        }
        merge(body, compact(sent))
        _check_mtu(body["mtu"])
        return self._registry.insert(call, name, body, duration_s=_NETWORK_S)

    async def get(self, call: Call) -> JsonObject:
        """compute.networks.get."""
        name = self._network(call)
        links = [compute_link(user) for user in sorted(self._registry.users(name)) if "/subnetworks/" in user]
        body = self._registry.find(name) | ({"subnetworks": links} if links else {})
        return self._registry.render(call, body)

    async def list(self, call: Call) -> JsonObject:
        """compute.networks.list."""
        prefix = self._registry.path(call, "global", "networks")
        return self._registry.listing(call, "compute#networkList", prefix)

    async def patch(self, call: Call) -> JsonObject:
        """compute.networks.patch."""
        name, sent = self._network(call), call.body or {}
        _check_mtu(sent.get("mtu", MTU_RANGE[0]))
        return self._registry.change(
            call, name, lambda: merge(self._registry.find(name), sent), verb="patch", duration_s=_NETWORK_S
        )

    async def delete(self, call: Call) -> JsonObject:
        """compute.networks.delete: refused while anything is in it."""
        name = self._network(call)
        self._registry.ready(name)
        self._registry.check_unused("network", name)
        return self._registry.delete(call, name, duration_s=_NETWORK_S)

    async def insert_subnet(self, call: Call) -> JsonObject:
        """compute.subnetworks.insert."""
        registry, sent, region = self._registry, call.body or {}, call.path["region"]
        missing(sent, "name", "network", "ipCidrRange")
        registry.check_place("region", region, sent)
        network = registry.reference(sent["network"], "resource.network", "global/networks/[^/]+")
        registry.ready(network)
        registry.iam.require(call.principal, "compute.networks.updatePolicy", network)
        name = self._subnet(call)
        primary = _cidr(sent["ipCidrRange"], "resource.ipCidrRange")
        for index, extra in enumerate(sent.get("secondaryIpRanges") or ()):
            _cidr(extra["ipCidrRange"], f"resource.secondaryIpRanges[{index}].ipCidrRange")
        body: JsonObject = {
            "kind": "compute#subnetwork",
            "gatewayAddress": str(primary.network_address + 1),
            "privateIpGoogleAccess": False,
            "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
            **compact(sent),
            "network": compute_link(network),
            "region": compute_link(registry.path(call, "regions", region)),
        }
        _refresh(body)

        finish = self._overlap_check(name, body)
        return registry.insert(call, name, body, duration_s=_SUBNETWORK_S, finish=finish)

    async def get_subnet(self, call: Call) -> JsonObject:
        """compute.subnetworks.get."""
        return self._registry.render(call, self._registry.find(self._subnet(call)))

    async def list_subnets(self, call: Call) -> JsonObject:
        """compute.subnetworks.list."""
        prefix = self._registry.path(call, "regions", call.path["region"], "subnetworks")
        return self._registry.listing(call, "compute#subnetworkList", prefix)

    async def patch_subnet(self, call: Call) -> JsonObject:
        """compute.subnetworks.patch: needs the fingerprint."""
        name, sent = self._subnet(call), call.body or {}
        check_fingerprint(self._registry.ready(name), sent)
        return self._change(
            call, {key: value for key, value in sent.items() if key != "fingerprint"}, "patch"
        )

    async def expand(self, call: Call) -> JsonObject:
        """compute.subnetworks.expandIpCidrRange: to a range that holds the old one."""
        wanted = (call.body or {}).get("ipCidrRange", "")
        old = _cidr(self._registry.ready(self._subnet(call))["ipCidrRange"], "ipCidrRange")
        if not old.subnet_of(_cidr(wanted, "ipCidrRange")):
            raise invalid("ipCidrRange", wanted, f"The new range must contain the current one, {old}.")
        return self._change(call, {"ipCidrRange": wanted}, "expandIpCidrRange")

    async def set_private_access(self, call: Call) -> JsonObject:
        """compute.subnetworks.setPrivateIpGoogleAccess."""
        wanted = bool((call.body or {}).get("privateIpGoogleAccess"))
        return self._change(call, {"privateIpGoogleAccess": wanted}, "setPrivateIpGoogleAccess")

    def _change(self, call: Call, patch: JsonObject, verb: str) -> JsonObject:
        name = self._subnet(call)
        changed = copy.deepcopy(self._registry.ready(name))
        merge(changed, patch)
        _refresh(changed)
        check = self._overlap_check(name, changed)

        def work() -> None:
            check()
            self._registry.world.directory[name] = changed

        return self._registry.change(call, name, work, verb=verb, duration_s=_SUBNETWORK_S)

    async def delete_subnet(self, call: Call) -> JsonObject:
        """compute.subnetworks.delete: refused while a machine is in it."""
        name = self._subnet(call)
        self._registry.ready(name)
        self._registry.check_unused("subnetwork", name)
        return self._registry.delete(call, name, duration_s=_SUBNETWORK_S)

    def _overlap_check(self, name: str, body: JsonObject) -> Callable[[], None]:
        """Look for another subnetwork of the network with these addresses, now; refuse in the operation.

        That is where Google refuses, and looking now makes the first of two the one that stays.
        """
        refusal: ApiError | None = None
        for other, existing in self._registry.world.directory.items():
            if other == name or "/subnetworks/" not in other or existing["network"] != body["network"]:
                continue
            for mine in _ranges(body):
                if any(mine.overlaps(theirs) for theirs in _ranges(existing)):
                    _, _, _, region, _, short = other.split("/")
                    place = f"existing subnetwork '{short}' in region '{region}'"
                    text = f"Invalid IPCidrRange: {mine} conflicts with {place}."
                    refusal = ApiError(400, "INVALID_USAGE", text, reason="invalid")

        def check() -> None:
            if refusal is not None:
                raise refusal

        return check


def _check_mtu(mtu: int) -> None:
    low, high = MTU_RANGE
    if not low <= mtu <= high:
        raise invalid("resource.mtu", mtu, f"Must be between {low} and {high}.")


def _cidr(text: str, field: str) -> ipaddress.IPv4Network:
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise invalid(
            field, text, f"Must be a CIDR address range that is contained in RFC 1918: {error}."
        ) from None
    if network.prefixlen > _LONGEST_PREFIX:
        raise invalid(field, text, f"The prefix length must be at most {_LONGEST_PREFIX}.")
    return network


def _ranges(body: JsonObject) -> Iterator[ipaddress.IPv4Network]:
    yield ipaddress.IPv4Network(body["ipCidrRange"])
    for extra in body.get("secondaryIpRanges") or ():
        yield ipaddress.IPv4Network(extra["ipCidrRange"])


def _refresh(body: JsonObject) -> None:
    """Derive the fields that follow from others."""
    body["enableFlowLogs"] = bool(body.get("logConfig", {}).get("enable"))
    body.pop("fingerprint", None)
    body["fingerprint"] = fingerprint(body)

"""Cloud Routers with their NATs, and firewall rules."""

from __future__ import annotations

import copy
import ipaddress
import re
from collections.abc import Mapping

from rehearsal.cloud.compute.registry import Registry, compact, invalid, merge, missing
from rehearsal.cloud.operations import compute_link
from rehearsal.cloud.service import ApiError, Call, JsonObject, Method

# Virtual seconds that an operation takes: of the order of the real ones, and this project's choice.
_ROUTER_S, _FIREWALL_S = 6.0, 8.0

_NAT_DEFAULTS = {
    "type": "PUBLIC",
    "endpointTypes": ["ENDPOINT_TYPE_VM"],
    "enableEndpointIndependentMapping": False,
    "autoNetworkTier": "PREMIUM",
}
_PROTOCOLS = {"tcp", "udp", "icmp", "esp", "ah", "sctp", "ipip", "all"}
_PORTS = re.compile(r"\d{1,5}(-\d{1,5})?")


class Routers:
    """compute.routers and compute.firewalls."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def methods(self) -> Mapping[str, Method]:
        """By method id."""
        return {
            "compute.routers.insert": Method(self.insert, "compute.routers.create", self._router),
            "compute.routers.get": Method(self.get, "compute.routers.get", self._router),
            "compute.routers.list": Method(self.list, "compute.routers.list"),
            "compute.routers.patch": Method(self.patch, "compute.routers.update", self._router),
            "compute.routers.delete": Method(self.delete, "compute.routers.delete", self._router),
            "compute.firewalls.insert": Method(self.insert_rule, "compute.firewalls.create", self._firewall),
            "compute.firewalls.get": Method(self.get_rule, "compute.firewalls.get", self._firewall),
            "compute.firewalls.list": Method(self.list_rules, "compute.firewalls.list"),
            "compute.firewalls.patch": Method(self.patch_rule, "compute.firewalls.update", self._firewall),
            "compute.firewalls.delete": Method(self.delete_rule, "compute.firewalls.delete", self._firewall),
        }

    def _router(self, call: Call) -> str:
        name = call.path.get("router") or (call.body or {}).get("name", "")
        return self._registry.path(call, "regions", call.path["region"], "routers", name)

    def _firewall(self, call: Call) -> str:
        name = call.path.get("firewall") or (call.body or {}).get("name", "")
        return self._registry.path(call, "global", "firewalls", name)

    def _network(self, call: Call, value: str) -> str:
        """The full name of the network of a new resource, which the caller must be allowed to change."""
        name = self._registry.reference(value, "resource.network", "global/networks/[^/]+")
        self._registry.ready(name)
        self._registry.iam.require(call.principal, "compute.networks.updatePolicy", name)
        return name

    async def insert(self, call: Call) -> JsonObject:
        """compute.routers.insert."""
        sent, region = call.body or {}, call.path["region"]
        self._registry.check_place("region", region, sent)
        missing(sent, "network")
        body: JsonObject = {
            "kind": "compute#router",
            **compact(sent),
            "network": compute_link(self._network(call, sent["network"])),
            "region": compute_link(self._registry.path(call, "regions", region)),
        }
        self._complete_nats(body)
        return self._registry.insert(call, self._router(call), body, duration_s=_ROUTER_S)

    async def get(self, call: Call) -> JsonObject:
        """compute.routers.get."""
        return self._registry.render(call, self._registry.find(self._router(call)))

    async def list(self, call: Call) -> JsonObject:
        """compute.routers.list."""
        prefix = self._registry.path(call, "regions", call.path["region"], "routers")
        return self._registry.listing(call, "compute#routerList", prefix)

    async def patch(self, call: Call) -> JsonObject:
        """compute.routers.patch: NATs are written here, as a whole list."""
        name = self._router(call)
        changed = copy.deepcopy(self._registry.ready(name))
        merge(changed, call.body or {})
        changed = compact(changed)
        self._complete_nats(changed)

        def work() -> None:
            self._registry.world.directory[name] = changed

        return self._registry.change(call, name, work, verb="patch", duration_s=_ROUTER_S)

    async def delete(self, call: Call) -> JsonObject:
        """compute.routers.delete, NATs and all."""
        return self._registry.delete(call, self._router(call), duration_s=_ROUTER_S)

    def _complete_nats(self, router: JsonObject) -> None:
        """Fill in defaults; ApiError 400 for duplicate names or subnetworks that are not there."""
        names = [nat.get("name") for nat in router.get("nats", ())]
        for name in names:
            if not name or names.count(name) > 1:
                raise invalid("resource.nats", name, "Each NAT needs a name of its own.")
        for index, nat in enumerate(router.get("nats", ())):
            for key, value in _NAT_DEFAULTS.items():
                nat.setdefault(key, value)
            if "sourceSubnetworkIpRangesToNat" not in nat:
                field = f"resource.nats[{index}].sourceSubnetworkIpRangesToNat"
                raise invalid(field, "", "Required field not specified.")
            for subnet in nat.get("subnetworks", ()):
                field = f"resource.nats[{index}].subnetworks"
                name = self._registry.reference(subnet["name"], field, "regions/[^/]+/subnetworks/[^/]+")
                self._registry.find(name)
                subnet["name"] = compute_link(name)

    async def insert_rule(self, call: Call) -> JsonObject:
        """compute.firewalls.insert."""
        sent = call.body or {}
        default = "global/networks/default"
        body: JsonObject = {
            "kind": "compute#firewall",
            "direction": "INGRESS",
            "priority": 1000,
            "disabled": False,
            "logConfig": {"enable": False},
            **compact(sent),
            "network": compute_link(self._network(call, sent.get("network") or default)),
        }
        if body["direction"] == "INGRESS" and not body.keys() & {
            "sourceRanges",
            "sourceTags",
            "sourceServiceAccounts",
        }:
            body["sourceRanges"] = ["0.0.0.0/0"]
        _check_rule(body)
        return self._registry.insert(call, self._firewall(call), body, duration_s=_FIREWALL_S)

    async def get_rule(self, call: Call) -> JsonObject:
        """compute.firewalls.get."""
        return self._registry.render(call, self._registry.find(self._firewall(call)))

    async def list_rules(self, call: Call) -> JsonObject:
        """compute.firewalls.list."""
        prefix = self._registry.path(call, "global", "firewalls")
        return self._registry.listing(call, "compute#firewallList", prefix)

    async def patch_rule(self, call: Call) -> JsonObject:
        """compute.firewalls.patch: the network stays."""
        name, sent = self._firewall(call), dict(call.body or {})
        changed = copy.deepcopy(self._registry.ready(name))
        if "network" in sent:
            network = self._registry.reference(
                sent.pop("network"), "resource.network", "global/networks/[^/]+"
            )
            if compute_link(network) != changed["network"]:
                raise invalid(
                    "resource.network", network, "The network of a firewall rule cannot be changed."
                )
        merge(changed, sent)
        changed = compact(changed)
        _check_rule(changed)

        def work() -> None:
            self._registry.world.directory[name] = changed

        return self._registry.change(call, name, work, verb="patch", duration_s=_FIREWALL_S)

    async def delete_rule(self, call: Call) -> JsonObject:
        """compute.firewalls.delete."""
        return self._registry.delete(call, self._firewall(call), duration_s=_FIREWALL_S)


def _check_rule(body: JsonObject) -> None:
    """ApiError 400 for what https://cloud.google.com/vpc/docs/firewalls rules out."""
    if bool(body.get("allowed")) == bool(body.get("denied")):
        text = "Exactly one of 'allowed' and 'denied' must be specified for a firewall rule."
        raise ApiError(400, "INVALID_ARGUMENT", text, reason="invalid")
    if not 0 <= body["priority"] <= 65535:
        raise invalid("resource.priority", body["priority"], "Must be between 0 and 65535.")
    for field in ("sourceRanges", "destinationRanges"):
        for index, text in enumerate(body.get(field, ())):
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                raise invalid(
                    f"resource.{field}[{index}]", text, f"Must be a valid CIDR range: {error}."
                ) from None
    for kind in ("allowed", "denied"):
        for index, entry in enumerate(body.get(kind, ())):
            field = f"resource.{kind}[{index}]"
            protocol = entry.get("IPProtocol", "")
            if protocol not in _PROTOCOLS and not (protocol.isdigit() and int(protocol) < 256):
                raise invalid(f"{field}.IPProtocol", protocol, "Must be a well known IP protocol or number.")
            for ports in entry.get("ports", ()):
                if not _PORTS.fullmatch(ports) or max(map(int, ports.split("-"))) > 65535:
                    raise invalid(
                        f"{field}.ports", ports, "Ports must be an integer between 0 and 65535 or a range."
                    )

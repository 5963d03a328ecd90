"""gcp:compute/routerNat:RouterNat, which is an entry in its router: read, change, write the whole list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.providers.gcp import mapping
from rehearsal.providers.gcp.lifecycle import Context, PlannedUpdate, Resource
from rehearsal.providers.gcp.table import COMPUTE, Update
from rehearsal.providers.gcp.types.compute import LINK
from rehearsal.providers.plugin.errors import ProviderApiError

Nats = list[dict[str, Any]]


class RouterNat(Resource):
    """A NAT of a router; the router's other NATs are written back as they were read."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Append the NAT to its router."""
        entry = mapping.body(self.table.inputs, planned, inputs)

        def append(nats: Nats) -> Nats:
            if any(nat["name"] == planned["name"] for nat in nats):
                raise ProviderApiError(
                    409, f"router {planned['router']!r} has a NAT {planned['name']!r} already"
                )
            return [*nats, entry]

        self._rewrite(context, planned, append)

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the router's entry of this name."""
        router = super().get(context, known)
        nats = (router or {}).get("nats") or []
        return next((nat for nat in nats if nat["name"] == known["name"]), None)

    def patch(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Put the changed entry in the place of the old one."""
        entry = mapping.body(self.table.inputs, change.planned, change.inputs, update=True)

        def exchange(nats: Nats) -> Nats:
            return [{**nat, **entry} if nat["name"] == change.planned["name"] else nat for nat in nats]

        self._rewrite(context, change.planned, exchange)

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Write the router's NATs without this one."""
        self._rewrite(context, known, lambda nats: [nat for nat in nats if nat["name"] != known["name"]])

    def _rewrite(self, context: Context, known: Mapping[str, Any], change: Callable[[Nats], Nats]) -> None:
        router = self.item(known)
        with context.batches.lock(router):
            nats = self.call(context, "GET", router, known).get("nats") or []
            self.call(context, "PATCH", router, known, body={"nats": change(nats)})


ROUTER_NAT = RouterNat(
    "gcp:compute/routerNat:RouterNat",
    COMPUTE,
    "projects/{project}/regions/{region}/routers/{router}",
    (Update(),),
    {
        "region router": "nameless",
        "initialNatIps": "at=initialNatIps",
        "natIps drainNatIps initialNatIps": "always",
        "subnetworks": "always",
        "subnetworks.name": LINK,
        "enableDynamicPortAllocation": "given",
        "enableEndpointIndependentMapping": "given updated",
        "endpointTypes": {"is": "updated", "encode": lambda value, _: value or None},
        "logConfig.enable": "always",
        # Sent as empty lists with every NAT; the stand-in knows no values for them.
        "rules nat64Subnetworks": {"is": "always", "only": [], "fields": ()},
        "autoNetworkTier": "output",
    },
    id="{project}/{region}/{router}/{name}",
    schema="RouterNat",
)

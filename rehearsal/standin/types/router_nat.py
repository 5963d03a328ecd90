"""gcp:compute/routerNat:RouterNat, which is an entry in its router: read, change, write the whole list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.standin import mapping
from rehearsal.standin.errors import ApiError
from rehearsal.standin.lifecycle import Context, Resource
from rehearsal.standin.table import (
    COMPUTE,
    DELETION_POLICY,
    PROJECT,
    Field,
    Kind,
    Send,
    Table,
    Update,
    same_basename,
    same_link,
)
from rehearsal.standin.types.places import optional_v1_link

Nats = list[dict[str, Any]]


class RouterNat(Resource):
    """A NAT of a router; the router's other NATs are written back as they were read."""

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Append the NAT to its router."""
        entry = mapping.body(self.table.inputs, planned, inputs)

        def append(nats: Nats) -> Nats:
            if any(nat["name"] == planned["name"] for nat in nats):
                raise ApiError(409, f"router {planned['router']!r} has a NAT {planned['name']!r} already")
            return [*nats, entry]

        self._rewrite(context, planned, append)

    def get(self, context: Context, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The router's entry of this name."""
        router = super().get(context, known)
        nats = (router or {}).get("nats") or []
        return next((nat for nat in nats if nat["name"] == known["name"]), None)

    def patch(
        self,
        context: Context,
        request: Update,
        planned: Mapping[str, Any],
        inputs: Mapping[str, Any],
        state: Mapping[str, Any],
        changed: set[str],
    ) -> None:
        """Put the changed entry in the place of the old one."""
        entry = mapping.body(self.table.inputs, planned, inputs, update=True)

        def exchange(nats: Nats) -> Nats:
            return [{**nat, **entry} if nat["name"] == planned["name"] else nat for nat in nats]

        self._rewrite(context, planned, exchange)

    def remove(self, context: Context, known: Mapping[str, Any]) -> None:
        """Write the router's NATs without this one."""
        self._rewrite(context, known, lambda nats: [nat for nat in nats if nat["name"] != known["name"]])

    def _rewrite(self, context: Context, known: Mapping[str, Any], change: Callable[[Nats], Nats]) -> None:
        router = self.item(known)
        with context.batches.lock(router):
            nats = self.call(context, "GET", router, known).get("nats") or []
            self.call(context, "PATCH", router, known, body={"nats": change(nats)})


ROUTER_NAT = RouterNat(
    Table(
        token="gcp:compute/routerNat:RouterNat",
        service=COMPUTE,
        collection="projects/{project}/regions/{region}/routers/{router}",
        item="projects/{project}/regions/{region}/routers/{router}",
        id="{project}/{region}/{router}/{name}",
        fields=(
            Field("name", replaces=True),
            PROJECT,
            DELETION_POLICY,
            Field("router", rest=None, required=True, replaces=True, same=same_basename),
            Field("region", rest=None, computed=True, replaces=True, same=same_basename),
            Field(
                "sourceSubnetworkIpRangesToNat",
                required=True,
                one_of=(
                    "ALL_SUBNETWORKS_ALL_IP_RANGES",
                    "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES",
                    "LIST_OF_SUBNETWORKS",
                ),
            ),
            Field("natIpAllocateOption", one_of=("MANUAL_ONLY", "AUTO_ONLY")),
            Field("natIps", Kind.SET, send=Send.ALWAYS),
            Field("drainNatIps", Kind.SET, send=Send.ALWAYS),
            Field("initialNatIps", Kind.SET, send=Send.ALWAYS, replaces=True),
            Field(
                "subnetworks",
                Kind.BLOCK_SET,
                send=Send.ALWAYS,
                fields=(
                    Field("name", required=True, same=same_link, decode=optional_v1_link),
                    Field("sourceIpRangesToNats", Kind.SET, rest="sourceIpRangesToNat", required=True),
                    Field("secondaryIpRangeNames", Kind.SET),
                ),
            ),
            Field("minPortsPerVm", Kind.INT, computed=True),
            Field("maxPortsPerVm", Kind.INT),
            Field("enableDynamicPortAllocation", Kind.BOOL, computed=True, send=Send.GIVEN),
            Field(
                "enableEndpointIndependentMapping",
                Kind.BOOL,
                computed=True,
                send=Send.GIVEN,
                send_update=Send.ALWAYS,
            ),
            Field(
                "endpointTypes",
                Kind.LIST,
                computed=True,
                replaces=True,
                send_update=Send.ALWAYS,
                encode=lambda value, _: value or None,
            ),
            Field("udpIdleTimeoutSec", Kind.INT, default=30),
            Field("icmpIdleTimeoutSec", Kind.INT, default=30),
            Field("tcpEstablishedIdleTimeoutSec", Kind.INT, default=1200),
            Field("tcpTransitoryIdleTimeoutSec", Kind.INT, default=30),
            Field("tcpTimeWaitTimeoutSec", Kind.INT, default=120),
            Field("type", default="PUBLIC", replaces=True),
            Field(
                "logConfig",
                Kind.BLOCK,
                fields=(
                    Field("enable", Kind.BOOL, required=True, send=Send.ALWAYS),
                    Field("filter", required=True, one_of=("ERRORS_ONLY", "TRANSLATIONS_ONLY", "ALL")),
                ),
            ),
            # Sent as empty lists with every NAT; the stand-in knows no values for them.
            Field("rules", Kind.BLOCKS, only=[], send=Send.ALWAYS),
            Field("nat64Subnetworks", Kind.BLOCKS, only=[], send=Send.ALWAYS),
            Field("sourceSubnetworkIpRangesToNat64", output=True),
        ),
        updates=(
            Update(
                (
                    "sourceSubnetworkIpRangesToNat",
                    "natIpAllocateOption",
                    "natIps",
                    "drainNatIps",
                    "subnetworks",
                    "minPortsPerVm",
                    "maxPortsPerVm",
                    "enableDynamicPortAllocation",
                    "enableEndpointIndependentMapping",
                    "udpIdleTimeoutSec",
                    "icmpIdleTimeoutSec",
                    "tcpEstablishedIdleTimeoutSec",
                    "tcpTransitoryIdleTimeoutSec",
                    "tcpTimeWaitTimeoutSec",
                    "logConfig",
                )
            ),
        ),
    )
)

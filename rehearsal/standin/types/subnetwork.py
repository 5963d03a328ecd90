"""gcp:compute/subnetwork:Subnetwork."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.standin.lifecycle import Resource
from rehearsal.standin.table import (
    COMPUTE,
    CREATED,
    DELETION_POLICY,
    NAME,
    PROJECT,
    SELF_LINK,
    Field,
    Kind,
    Send,
    Table,
    Update,
)
from rehearsal.standin.types.places import NETWORK, REGION


def _log_config(block: dict[str, Any] | None, _planned: Mapping[str, Any]) -> dict[str, Any]:
    """The block's presence turns flow logs on, its absence turns them off."""
    return {"enable": False} if block is None else {**block, "enable": True}


def _enabled(raw: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return raw if raw and raw.get("enable", True) else None


SUBNETWORK = Resource(
    Table(
        token="gcp:compute/subnetwork:Subnetwork",
        service=COMPUTE,
        collection="projects/{project}/regions/{region}/subnetworks",
        item="projects/{project}/regions/{region}/subnetworks/{name}",
        fields=(
            NAME,
            PROJECT,
            DELETION_POLICY,
            NETWORK,
            REGION,
            Field("description", replaces=True),
            Field("ipCidrRange", computed=True),
            Field("privateIpGoogleAccess", Kind.BOOL, computed=True, send_update=Send.ALWAYS),
            Field("purpose", computed=True, replaces=True),
            Field("stackType", computed=True),
            Field(
                "logConfig",
                Kind.BLOCK,
                send=Send.ALWAYS,
                encode=_log_config,
                decode=_enabled,
                fields=(
                    Field("aggregationInterval", default="INTERVAL_5_SEC"),
                    Field("flowSampling", Kind.NUMBER, default=0.5, send=Send.GIVEN),
                    Field("metadata", default="INCLUDE_ALL_METADATA"),
                    Field("metadataFields", Kind.SET, send=Send.ALWAYS),
                    Field("filterExpr", default="true"),
                ),
            ),
            Field(
                "secondaryIpRanges",
                Kind.BLOCKS,
                computed=True,
                send=Send.GIVEN,
                fields=(
                    Field("rangeName", required=True),
                    Field("ipCidrRange", computed=True),
                    Field("reservedInternalRange", output=True),
                    Field("ipCollection", output=True),
                    Field("ipVersion", output=True),
                ),
            ),
            SELF_LINK,
            CREATED,
            Field("subnetworkId", Kind.INT, rest="id", output=True),
            Field("gatewayAddress", output=True),
            Field("privateIpv6GoogleAccess", output=True),
            Field("allowSubnetCidrRoutesOverlap", Kind.BOOL, output=True),
            Field("role", output=True),
            Field("state", output=True),
            Field("ipv6CidrRange", output=True),
            Field("ipv6AccessType", output=True),
            Field("internalIpv6Prefix", output=True),
            Field("externalIpv6Prefix", output=True),
            Field("ipCollection", output=True),
            Field("ipv6GceEndpoint", output=True),
            Field("reservedInternalRange", output=True),
            Field("fingerprint", Kind.MAP, rest=None, output=True),
        ),
        updates=(
            Update(("ipCidrRange",), method="POST", suffix="/expandIpCidrRange"),
            Update(("privateIpGoogleAccess",), method="POST", suffix="/setPrivateIpGoogleAccess"),
            Update(("stackType",), fingerprint=True),
            Update(("logConfig",), fingerprint=True),
            Update(("secondaryIpRanges",), fingerprint=True),
        ),
    )
)

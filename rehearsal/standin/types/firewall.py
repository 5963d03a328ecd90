"""gcp:compute/firewall:Firewall."""

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
from rehearsal.standin.types.places import NETWORK


def _log_config(block: dict[str, Any] | None, _planned: Mapping[str, Any]) -> dict[str, Any]:
    return {"enable": False} if block is None else {**block, "enable": True}


def _enabled(raw: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return raw if raw and raw.get("enable") else None


_PROTOCOLS = (Field("protocol", rest="IPProtocol", required=True), Field("ports", Kind.LIST))

# What an update sends: all of it, zero or not.
_MUTABLE = (
    Field("allows", Kind.BLOCK_SET, rest="allowed", fields=_PROTOCOLS, send_update=Send.ALWAYS),
    Field("denies", Kind.BLOCK_SET, rest="denied", fields=_PROTOCOLS, send_update=Send.ALWAYS),
    Field("description", send_update=Send.ALWAYS),
    Field("destinationRanges", Kind.SET, computed=True, send_update=Send.ALWAYS),
    Field("disabled", Kind.BOOL, send_update=Send.ALWAYS),
    Field(
        "logConfig",
        Kind.BLOCK,
        send=Send.ALWAYS,
        encode=_log_config,
        decode=_enabled,
        fields=(Field("metadata", required=True),),
    ),
    NETWORK,
    Field("priority", Kind.INT, default=1000, send=Send.ALWAYS),
    Field("sourceRanges", Kind.SET, computed=True, send_update=Send.ALWAYS),
    Field("sourceServiceAccounts", Kind.SET, send_update=Send.ALWAYS),
    Field("sourceTags", Kind.SET, send_update=Send.ALWAYS),
    Field("targetServiceAccounts", Kind.SET, send_update=Send.ALWAYS),
    Field("targetTags", Kind.SET, send_update=Send.ALWAYS),
)

FIREWALL = Resource(
    Table(
        token="gcp:compute/firewall:Firewall",
        service=COMPUTE,
        collection="projects/{project}/global/firewalls",
        item="projects/{project}/global/firewalls/{name}",
        fields=(
            NAME,
            PROJECT,
            DELETION_POLICY,
            *_MUTABLE,
            Field("direction", computed=True, replaces=True, one_of=("INGRESS", "EGRESS")),
            SELF_LINK,
            CREATED,
            Field("enableLogging", Kind.MAP, rest=None, output=True),
            Field("params", Kind.MAP, rest=None, output=True),
        ),
        updates=(Update(tuple(f.name for f in _MUTABLE)),),
    )
)

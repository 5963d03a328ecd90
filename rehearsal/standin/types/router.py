"""gcp:compute/router:Router."""

from __future__ import annotations

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

ROUTER = Resource(
    Table(
        token="gcp:compute/router:Router",
        service=COMPUTE,
        collection="projects/{project}/regions/{region}/routers",
        item="projects/{project}/regions/{region}/routers/{name}",
        fields=(
            NAME,
            PROJECT,
            DELETION_POLICY,
            NETWORK,
            REGION,
            Field("description"),
            Field(
                "bgp",
                Kind.BLOCK,
                fields=(
                    Field("asn", Kind.INT, required=True),
                    Field("advertiseMode", default="DEFAULT", one_of=("DEFAULT", "CUSTOM")),
                    Field("advertisedGroups", Kind.LIST, send=Send.ALWAYS),
                    Field(
                        "advertisedIpRanges",
                        Kind.BLOCK_SET,
                        send=Send.ALWAYS,
                        fields=(Field("range", required=True), Field("description")),
                    ),
                    Field("keepaliveInterval", Kind.INT, default=20),
                    Field("identifierRange", computed=True),
                ),
            ),
            SELF_LINK,
            CREATED,
            Field("encryptedInterconnectRouter", Kind.BOOL, output=True),
            Field("nccGateway", output=True),
            Field("md5AuthenticationKeys", Kind.BLOCK, rest=None, output=True),
            Field("params", Kind.MAP, rest=None, output=True),
        ),
        updates=(Update(("bgp", "description")),),
    )
)

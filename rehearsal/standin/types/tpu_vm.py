"""gcp:tpu/v2Vm:V2Vm. No spelling of a network, subnetwork or disk is taken for another one's: as recorded."""

from __future__ import annotations

from rehearsal.standin.lifecycle import Resource
from rehearsal.standin.table import (
    DELETION_POLICY,
    PROJECT,
    TPU,
    Field,
    Kind,
    Send,
    Table,
    Update,
    basename,
    same_basename,
)

_NETWORK = (
    Field("network", computed=True),
    Field("subnetwork", computed=True),
    Field("enableExternalIps", Kind.BOOL, send=Send.ALWAYS),
    Field("canIpForward", Kind.BOOL, send=Send.ALWAYS),
    Field("queueCount", Kind.INT, computed=True),
)

V2_VM = Resource(
    Table(
        token="gcp:tpu/v2Vm:V2Vm",
        service=TPU,
        collection="projects/{project}/locations/{zone}/nodes",
        item="projects/{project}/locations/{zone}/nodes/{name}",
        create_query={"nodeId": "{name}"},
        fields=(
            Field("name", replaces=True, decode=basename),
            PROJECT,
            DELETION_POLICY,
            Field("zone", rest=None, computed=True, replaces=True, same=same_basename),
            Field("runtimeVersion", required=True, replaces=True),
            Field("acceleratorType", computed=True, replaces=True, conflicts=("acceleratorConfig",)),
            Field(
                "acceleratorConfig",
                Kind.BLOCK,
                computed=True,
                replaces=True,
                conflicts=("acceleratorType",),
                fields=(Field("type", required=True), Field("topology", required=True)),
            ),
            Field("cidrBlock", computed=True, replaces=True),
            Field(
                "networkConfig",
                Kind.BLOCK,
                computed=True,
                replaces=True,
                conflicts=("networkConfigs",),
                fields=_NETWORK,
            ),
            Field(
                "networkConfigs", Kind.BLOCKS, replaces=True, conflicts=("networkConfig",), fields=_NETWORK
            ),
            Field(
                "serviceAccount",
                Kind.BLOCK,
                computed=True,
                replaces=True,
                fields=(
                    Field("email", computed=True),
                    Field("scopes", Kind.LIST, rest="scope", computed=True),
                ),
            ),
            Field(
                "schedulingConfig",
                Kind.BLOCK,
                replaces=True,
                fields=(
                    Field("preemptible", Kind.BOOL, send=Send.ALWAYS),
                    Field("reserved", Kind.BOOL, send=Send.ALWAYS),
                    Field("spot", Kind.BOOL),
                ),
            ),
            Field(
                "shieldedInstanceConfig",
                Kind.BLOCK,
                computed=True,
                replaces=True,
                fields=(Field("enableSecureBoot", Kind.BOOL, required=True, send=Send.ALWAYS),),
            ),
            Field(
                "dataDisks",
                Kind.BLOCKS,
                fields=(
                    Field("sourceDisk", required=True),
                    Field("mode", default="READ_WRITE", one_of=("READ_WRITE", "READ_ONLY")),
                ),
            ),
            Field("description"),
            Field("labels", Kind.LABELS),
            Field("metadata", Kind.MAP),
            Field("tags", Kind.LIST),
            Field("state", output=True),
            Field("health", output=True),
            Field("healthDescription", output=True),
            Field("apiVersion", output=True),
            Field("queuedResource", output=True),
            Field("multisliceNode", Kind.BOOL, output=True),
            Field(
                "networkEndpoints",
                Kind.BLOCKS,
                output=True,
                fields=(
                    Field("ipAddress"),
                    Field("port", Kind.INT),
                    Field(
                        "accessConfigs",
                        Kind.BLOCKS,
                        rest="accessConfig",
                        decode=lambda raw: [raw] if raw else None,
                        fields=(Field("externalIp"),),
                    ),
                ),
            ),
            Field(
                "symptoms",
                Kind.BLOCKS,
                output=True,
                fields=(Field("createTime"), Field("symptomType"), Field("details"), Field("workerId")),
            ),
        ),
        updates=(Update(("dataDisks", "description", "labels", "metadata", "tags"), mask="updateMask"),),
    )
)

"""TPU VMs. No spelling of a network, subnetwork or disk is taken for another one's: as recorded."""

from __future__ import annotations

from rehearsal.providers.gcp.lifecycle import Resource
from rehearsal.providers.gcp.table import Service, Update

TPU = Service("tpuv2")
_ZONES = "projects/{project}/locations/{zone}"

V2_VM = Resource(
    "gcp:tpu/v2Vm:V2Vm",
    TPU,
    f"{_ZONES}/nodes/{{name}}",
    (Update("dataDisks description labels metadata tags", mask="updateMask"),),
    {
        "*.canIpForward *.enableExternalIps": "always",
        "schedulingConfig.preemptible schedulingConfig.reserved": "always",
        "shieldedInstanceConfig.enableSecureBoot": "always",
    },
    create_query={"nodeId": "{name}"},
)

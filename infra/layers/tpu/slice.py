"""A TPU slice."""

from collections.abc import Mapping
from typing import Any

import pulumi

from infra.layers.tpu.request import SliceResources
from infra.layers.tpu.v2_vm import v2_vm
from infra.settings.schema import LOGIN, SSH
from infra.slices.names import BOOT_LOG, JOB_UNIT, LOG, SLICE_TYPE
from infra.slices.nodes import Node


class TpuSlice(pulumi.ComponentResource):
    """A slice, its resources, and commands for people."""

    state: pulumi.Output[str]
    addresses: pulumi.Output[list[str]]
    resource: pulumi.Resource
    node: Node

    def __init__(
        self,
        node: Node,
        place: SliceResources,
        metadata: Mapping[str, Any],
        opts: pulumi.ResourceOptions | None = None,
    ):
        super().__init__(SLICE_TYPE, node.name, None, opts)
        self.node = node
        self.resource = vm = v2_vm(node, place, metadata, parent=self)
        self.state = vm.state
        self.addresses = vm.network_endpoints.apply(
            lambda endpoints: [endpoint.ip_address or "" for endpoint in endpoints or ()]
        )
        self.register_outputs({})

    def outputs(self, project: str, bucket: pulumi.Output[str]) -> dict[str, Any]:
        """Return the slice as the stack exports it."""
        environment = pulumi.get_stack()
        return {
            "name": self.node.name,
            "zone": self.node.zone,
            "acceleratorType": self.node.kind.name,
            "hosts": self.node.kind.hosts,
            "state": self.state,
            "addresses": self.addresses,
            "usefulCommands": bucket.apply(
                lambda name: useful_commands(self.node, project, name, environment)
            ),
        }


def useful_commands(node: Node, project: str, bucket: str, environment: str) -> dict[str, str]:
    """Commands to paste."""
    where = f"{node.name} --project={project} --zone={node.zone}"
    ssh = SSH.format(login=f"$({LOGIN})", node=node.name, project=project, zone=node.zone)
    logs = f'logName="projects/{project}/logs/{LOG}" AND labels.node="{node.name}" AND labels.worker="0"'
    return {
        "ssh": f"{ssh} --worker=0",
        "sshAll": f"{ssh} --worker=all --command='hostname'",
        "bootLog": f"{ssh} --worker=all --command='sudo tail -n 50 {BOOT_LOG}'",
        "jobLog": f"{ssh} --worker=0 --command='sudo journalctl --unit={JOB_UNIT} --follow'",
        "logs": f"gcloud logging read '{logs}' --project={project} --order=asc"
        " --format='value(timestamp,textPayload,jsonPayload.message)'",
        "bootStatus": f"gcloud storage cat 'gs://{bucket}/boot/{node.name}/worker-*.json'",
        "describe": f"gcloud compute tpus tpu-vm describe {where}",
        "recover": f"tpu recover {environment}",
        "delete": f"gcloud compute tpus tpu-vm delete {where}",
    }

"""Slices by the Cloud TPU API: one `gcp.tpu.V2Vm` is one slice with all its hosts."""

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra import names
from infra.nodes import Node
from infra.tpu.backend import Created, Place


def timeouts(hosts: int) -> pulumi.CustomTimeouts:
    """How long Pulumi is patient: the provider's own 20 minutes for one host, an hour for sixty-four.

    All that long the provider repeats what was answered by 429, a quota's refusal too, and nobody else may
    change the stack.
    """
    return pulumi.CustomTimeouts(create=f"{20 + 40 * (hosts - 1) // 63}m", update="30m", delete="30m")


class V2VmBackend:
    """Creates nodes that nobody reaches from outside, and that run as the training account."""

    def create(
        self, node: Node, place: Place, metadata: Mapping[str, Any], opts: pulumi.ResourceOptions
    ) -> Created:
        """Declare the node. Labels, metadata and description change in place; all else replaces it."""
        vm = gcp.tpu.V2Vm(
            node.name,
            name=node.name,
            zone=node.zone,
            description=f"{node.kind.name} ({node.kind.topology}), {node.kind.hosts} host(s)",
            accelerator_type=node.kind.name,
            runtime_version=node.runtime_version,
            network_config={
                "network": place.network_id,
                "subnetwork": place.subnet_id,
                "enable_external_ips": False,
                "can_ip_forward": False,
            },
            service_account={
                "email": place.service_account_email,
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],  # IAM decides, not scopes
            },
            data_disks=(
                [{"source_disk": place.data_disk_id, "mode": "READ_ONLY"}] if place.data_disk_id else None
            ),
            scheduling_config=_scheduling(node),
            shielded_instance_config={"enable_secure_boot": place.secure_boot},
            tags=[names.SLICE_TAG],
            labels={**node.labels, "slice": node.slice},
            metadata=metadata,
            opts=pulumi.ResourceOptions.merge(
                opts,
                # A node keeps its name, so the old one must go before the new one comes.
                pulumi.ResourceOptions(delete_before_replace=True, custom_timeouts=timeouts(node.kind.hosts)),
            ),
        )
        return Created(
            state=vm.state,
            addresses=vm.network_endpoints.apply(
                lambda endpoints: [endpoint.ip_address or "" for endpoint in endpoints or ()]
            ),
            resource=vm,
        )


def _scheduling(node: Node) -> gcp.tpu.V2VmSchedulingConfigArgsDict | None:
    if node.spot or node.reserved:
        return {"preemptible": False, "spot": node.spot, "reserved": node.reserved}
    return None  # on demand

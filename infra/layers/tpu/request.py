"""A node as the TPU API accepts it.

`v2_vm` gives it to Pulumi for named slices, `fleet` sends it for a fleet's members.
https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes#Node
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google_facts.scopes import EVERYTHING
from infra.layers.data.names import disk_id, disk_name
from infra.layers.network.names import network_id, slice_tags, subnet_id
from infra.layers.storage.names import service_account_email, steps_bucket
from infra.layers.storage.settings import StorageSettings
from infra.layers.tpu.metadata import metadata
from infra.settings.schema import GcpSettings, Settings
from infra.slices.nodes import Node
from infra.slices.settings import TpuSettings

if TYPE_CHECKING:
    import pulumi  # slow to import, and needed by programs alone


@dataclass(frozen=True)
class SliceResources:
    """Resources that a slice uses, as ids `projects/…` (other spellings would replace it on every up).

    `acting`: what a node waits for before it is made.
    """

    network_id: pulumi.Input[str]
    subnet_id: pulumi.Input[str]
    data_disk_id: pulumi.Input[str] | None
    service_account_email: pulumi.Input[str]
    secure_boot: bool
    acting: pulumi.ResourceHookBinding | None = None


def request(
    node: Node, place: SliceResources, attributes: Mapping[str, Any], labels: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the body of nodes.create. Hosts have no external address and run as the training account."""
    body: dict[str, Any] = {
        "acceleratorType": node.kind.name,
        "runtimeVersion": node.runtime_version,
        "description": f"{node.kind.name} ({node.kind.topology}), {node.kind.hosts} host(s)",
        "networkConfig": {
            "network": place.network_id,
            "subnetwork": place.subnet_id,
            "enableExternalIps": False,
            "canIpForward": False,
        },
        "serviceAccount": {
            "email": place.service_account_email,
            "scope": [EVERYTHING],  # IAM decides, not scopes
        },
        "shieldedInstanceConfig": {"enableSecureBoot": place.secure_boot},
        "tags": slice_tags(labels),
        "labels": dict(labels),
        "metadata": dict(attributes),
    }
    if place.data_disk_id:
        body["dataDisks"] = [{"sourceDisk": place.data_disk_id, "mode": "READ_ONLY"}]
    if node.spot or node.reserved:  # else on demand
        body["schedulingConfig"] = {"preemptible": False, "spot": node.spot, "reserved": node.reserved}
    return body


def member_request(settings: Settings, node: Node, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the body for a fleet's member. Other layers' resources have the ids that settings determine."""
    place = SliceResources(
        network_id=network_id(settings),
        subnet_id=subnet_id(settings, node.region),
        data_disk_id=disk_id(settings, node.zone),
        service_account_email=service_account_email(settings),
        secure_boot=settings[TpuSettings].secure_boot,
    )
    attributes = metadata(
        settings,
        node,
        bucket=settings[StorageSettings].bucket_name,
        steps_bucket=steps_bucket(settings),
        data_disk=disk_name(settings, node.zone),
    )
    return request(node, place, attributes, {**settings[GcpSettings].default_labels, **labels})

"""Slices by the Cloud TPU API: a `gcp.tpu.V2Vm` is a slice with all its hosts."""

import re
from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.layers.tpu.request import SliceResources, request
from infra.slices.nodes import Node

_SNAKE = re.compile("[A-Z]")


def timeouts(hosts: int) -> pulumi.CustomTimeouts:
    """Return Pulumi's timeouts: the provider's default of 20 minutes for one host, an hour for 64.

    Until then the provider retries requests refused with 429, a quota's refusal too, and the stack is locked.
    """
    return pulumi.CustomTimeouts(create=f"{20 + 40 * (hosts - 1) // 63}m", update="30m", delete="30m")


def v2_vm(
    node: Node, place: SliceResources, metadata: Mapping[str, Any], parent: pulumi.Resource
) -> gcp.tpu.V2Vm:
    """Declare the node. Labels, metadata and description change in place; all else replaces it."""
    return gcp.tpu.V2Vm(
        node.name,
        name=node.name,
        zone=node.zone,
        **_arguments(request(node, place, metadata, {**node.labels, "slice": node.slice})),
        opts=pulumi.ResourceOptions(
            parent=parent,
            # A node keeps its name, so the old one must go before the new one comes.
            delete_before_replace=True,
            custom_timeouts=timeouts(node.kind.hosts),
            hooks=place.acting,
        ),
    )


def _arguments(body: Any) -> dict[str, Any]:
    """Return a request's body as the SDK's arguments: its names in snake case, and `scope` in the plural."""
    arguments = {
        _SNAKE.sub(lambda upper: f"_{upper[0].lower()}", key): (
            _arguments(value) if isinstance(value, dict) and key not in ("labels", "metadata") else value
        )
        for key, value in body.items()
    }
    if disks := arguments.get("data_disks"):
        arguments["data_disks"] = [_arguments(disk) for disk in disks]
    if "scope" in arguments:
        arguments["scopes"] = arguments.pop("scope")
    return arguments

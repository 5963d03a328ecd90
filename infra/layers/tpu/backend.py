"""What a slice needs, whatever creates it.

Today Google's Cloud TPU API does (`v2_vm.py`). Google has frozen that API; Compute Engine's instance
groups can stand here next, behind the same component.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from infra.slices.nodes import Node

if TYPE_CHECKING:
    import pulumi  # who only asks what a node is doesn't wait for it


@dataclass(frozen=True)
class Place:
    """What a slice stands on, as ids `projects/…` (a link or short name would replace it on every up)."""

    network_id: pulumi.Input[str]
    subnet_id: pulumi.Input[str]
    data_disk_id: pulumi.Input[str] | None
    service_account_email: pulumi.Input[str]
    secure_boot: bool


@dataclass(frozen=True)
class Created:
    """What became of it: Google's state ("READY", "PREEMPTED", …) and the hosts' internal addresses."""

    state: pulumi.Output[str]
    addresses: pulumi.Output[list[str]]
    resource: pulumi.Resource


class Backend(Protocol):
    """One way to create a slice."""

    def create(
        self, node: Node, place: Place, metadata: Mapping[str, Any], opts: pulumi.ResourceOptions
    ) -> Created:
        """Declare the slice's resources under `opts`."""

"""Interface of a slice's creation.

`v2_vm.py` implements it by Google's Cloud TPU API. Google has frozen that API; Compute Engine's instance
groups can be added behind the same component.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from infra.slices.nodes import Node

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


@dataclass(frozen=True)
class Created:
    """A created slice: Google's state ("READY", "PREEMPTED", …) and the hosts' internal addresses."""

    state: pulumi.Output[str]
    addresses: pulumi.Output[list[str]]
    resource: pulumi.Resource


class Backend(Protocol):
    """A way to create a slice."""

    def create(
        self, node: Node, place: SliceResources, metadata: Mapping[str, Any], opts: pulumi.ResourceOptions
    ) -> Created:
        """Declare the slice's resources under `opts`."""

"""Outputs of the tpu layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infra.core.outputs import Outputs, output

if TYPE_CHECKING:
    from pulumi import Output


class TpuOutputs(Outputs, layer="tpu"):
    """The slices, for `fleet` and people."""

    slices: Output[list[dict[str, Any]]] = output(
        "list: name, zone, acceleratorType, hosts, state, addresses, usefulCommands"
    )
    fleets: Output[list[dict[str, Any]]] = output(
        "list: name, count, create (the command that creates the members)"
    )
    stack_id: Output[str] = output("what members carry as the label `stack`")
    bundle: Output[str] | None = output("sha256 of the manifest that the hosts install", default=None)

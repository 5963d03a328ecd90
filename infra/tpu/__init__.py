"""TPU layer: the slices, and what a host does when it boots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from infra import names, nodes
from infra.gcp.roles import ACT_AS, TPU_ADMIN
from infra.layers import Layer, deferred
from infra.outputs import Outputs, output
from infra.providers import GOOGLE
from infra.settings.schema import Settings
from infra.tpu.one_slice import checked
from infra.tpu.rules import RULES
from infra.tpu.settings import SliceSettings, TpuSettings

if TYPE_CHECKING:
    from pulumi import Output

    from infra.prices import Row


class TpuOutputs(Outputs):
    """What `fleet` and people read of the slices."""

    slices: Output[list[dict[str, Any]]] = output(
        "list: name, zone, acceleratorType, hosts, state, addresses, usefulCommands"
    )
    fleets: Output[list[dict[str, Any]]] = output(
        "list: name, count, create (the command that creates the members)"
    )
    stack_id: Output[str] = output("what members carry as the label `stack`")
    bundle: Output[str] | None = output("sha256 of the manifest that the hosts install", default=None)


def _prices(settings: Settings) -> Iterable[Row]:
    from infra import prices  # here, because it imports names out of infra.nodes, which imports this package

    return prices.rows(nodes.nodes(settings))


def _at_google(settings: Settings) -> dict[str, str]:
    """Slices that people name; members of fleets, of which there may be a thousand, are not in it."""
    slices = (one for one in nodes.nodes(settings) if one.member is None)
    ids = (names.node_id(settings.project, one.zone, one.name) for one in slices)
    return {id_: f"https://tpu.googleapis.com/v2/{id_}" for id_ in ids}


LAYER = Layer(
    name="tpu",
    reads=("storage", "network"),
    may_read=("data",),
    always_on=True,
    settings=TpuSettings,
    rules=RULES,
    record_rules={SliceSettings: checked},
    roles=(TPU_ADMIN, ACT_AS),
    services=lambda _: ("tpu.googleapis.com",),
    providers=GOOGLE,
    outputs=TpuOutputs,
    prices=_prices,
    at_google=_at_google,
    holds="members",
    held_by="tpu",
    program=deferred(f"{__name__}.program"),
)

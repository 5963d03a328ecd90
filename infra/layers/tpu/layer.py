"""TPU layer: the slices and their hosts' start-up."""

from __future__ import annotations

from collections.abc import Iterable

from infra.core import names
from infra.core.layer import Hooks, Layer, deferred
from infra.core.providers import GOOGLE
from infra.google.role import ACT_AS, TPU_ADMIN
from infra.layers.tpu.outputs import TpuOutputs
from infra.layers.tpu.rules import RULES
from infra.prices.row import PriceRow
from infra.settings.schema import Settings
from infra.slices import nodes
from infra.slices.names import node_id
from infra.slices.price import rows
from infra.slices.rules import checked
from infra.slices.settings import SliceSettings, TpuSettings


def _prices(settings: Settings) -> Iterable[PriceRow]:
    return rows(nodes.nodes(settings))


def _at_google(settings: Settings) -> dict[str, str]:
    """Return the URLs of named slices, without members of fleets, of which there may be a thousand."""
    slices = (node for node in nodes.nodes(settings) if node.member is None)
    ids = (node_id(settings.project, node.zone, node.name) for node in slices)
    return {id_: f"https://tpu.googleapis.com/v2/{id_}" for id_ in ids}


def _following(settings: Settings) -> str:
    return f"tpu status {settings.environment}" if settings[TpuSettings].slices else ""


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
    held_by=lambda given: names.labels(given.environment, "tpu"),
    hooks=Hooks(following=_following),
    program=deferred(f"{__package__}.program"),
)

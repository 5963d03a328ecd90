"""Notes layer: a network for notes. A test drops it into a copy of the tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.core.layer import Layer
from infra.core.outputs import Outputs, output
from infra.core.providers import GOOGLE
from infra.errors import Problem
from infra.google.ids import of_compute
from infra.layers.network.settings import NetworkSettings
from infra.prices.row import PriceRow
from infra.settings import rules
from infra.settings.schema import Settings, setting

if TYPE_CHECKING:
    import pulumi


@dataclass(frozen=True, kw_only=True)
class NotesSettings:
    """Name and size of the notes."""

    name: str = setting("name of the notes", rule=rules.NETWORK_NAME, example="notes")
    mtu: int = setting("largest note, bytes", default=1460, rule=rules.between(1300, 8896, "bytes"))


class NotesOutputs(Outputs, layer="notes"):
    """The network of the notes."""

    notes_id: pulumi.Output[str] = output("`projects/P/global/networks/N`")

    @staticmethod
    def planned(settings: Settings) -> Mapping[str, str]:
        return {"notes_id": _id(settings)}


def _mtu(settings: Settings, given: set[str]) -> Iterator[Problem]:
    mtu, most = settings[NotesSettings].mtu, settings[NetworkSettings].mtu
    if mtu > most:
        yield Problem("notes:mtu", f"{mtu}", f"no note is larger than network:mtu, {most}", "shorten it")


def _program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> NotesOutputs:
    import pulumi
    import pulumi_gcp as gcp

    notes = gcp.compute.Network(
        "notes",
        name=settings[NotesSettings].name,
        mtu=settings[NotesSettings].mtu,
        auto_create_subnetworks=False,
        opts=pulumi.ResourceOptions(provider=providers["gcp"]),
    )
    return NotesOutputs(notes_id=notes.id)


def _id(settings: Settings) -> str:
    return f"projects/{settings.project}/global/networks/{settings[NotesSettings].name}"


LAYER = Layer(
    name="notes",
    reads=("network",),
    settings=NotesSettings,
    rules=((("notes:mtu", "network:mtu"), _mtu),),
    services=lambda _: ("compute.googleapis.com", "pubsub.googleapis.com"),
    providers=GOOGLE,
    outputs=NotesOutputs,
    prices=lambda settings: [PriceRow(settings[NotesSettings].name, 0.25, "Notes: 25 cents an hour.")],
    at_google=lambda settings: of_compute([_id(settings)]),
    program=_program,
)

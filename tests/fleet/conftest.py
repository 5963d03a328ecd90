"""Members without an environment's file, and the lab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from fleet.model import Owner
from infra.catalog import CATALOG
from infra.slices.nodes import Node
from tests.infra.conftest import pulumi_cli

if TYPE_CHECKING:
    from tests.fleet.lab import Lab

__all__ = ["OURS", "OWNER", "ZONES", "fleet", "labels", "pulumi_cli"]

ZONES = (
    "us-central1-b", "us-east1-d", "us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b",
    "us-south1-ai1b", "us-central1-ai1a",
)  # fmt: skip
OWNER = Owner({"environment": "dev", "layer": "tpu"}, "5a5a5a5")
OURS = {**OWNER.labels, "stack": OWNER.stack}


def labels(member: Node, stack: str = OWNER.stack) -> dict[str, str]:
    """Return the labels of a member's node."""
    return {**OWNER.labels, "stack": stack, "fleet": member.slice, "member": str(member.member)}


def fleet(
    count: int,
    zones: int = 2,
    run: str | None = "extract tiny.toml",
    others: tuple[str, ...] = (),
    bundle: str | None = None,
) -> list[Node]:
    """A spot fleet of v6e-8 over some zones, which may be moved to others."""
    kind = CATALOG.by_name("v6e-8")
    assert kind is not None
    return [
        Node(
            slice="extract", name=f"tpu-{ZONES[n % zones]}-{n // zones}", zone=ZONES[n % zones],
            home=ZONES[n % zones], kind=kind, spot=True, reserved=False, runtime_version="v2-alpha-tpuv6e",
            run=run, labels={}, bundle=bundle, member=n, spread=ZONES[:zones],
            others=tuple(zone for zone in others if zone != ZONES[n % zones]),
        )
        for n in range(count)
    ]  # fmt: skip


@pytest.fixture(name="lab", scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The emulated cloud, with this process as its user; a test begins anew."""
    from tests.fleet.lab import Lab  # it takes its zones from here

    lab = Lab(tmp_path_factory.mktemp("lab"))
    with lab.entered():
        yield lab
    lab.close()

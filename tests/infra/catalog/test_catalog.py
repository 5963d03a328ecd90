"""The facts agree with one another."""

import re

import pytest

from infra.catalog import CATALOG, SliceType, chips_of, region_of, summary
from infra.layers.network.names import DEFAULT_RANGES


@pytest.mark.parametrize("kind", CATALOG.types, ids=lambda kind: kind.name)
def test_hosts_times_chips_fill_the_topology(kind: SliceType) -> None:
    assert kind.name == f"v6e-{kind.chips}"
    assert kind.hosts * kind.chips_per_host == chips_of(kind.topology) == kind.chips
    assert (kind.hosts == 1) == (kind.chips <= 8)
    if kind.hosts > 1:
        assert kind.chips_per_host == CATALOG.chips_per_host == 4
    rows, columns = map(int, kind.topology.split("x"))
    assert rows <= columns <= 2 * rows


def test_all_sizes_of_a_pod_are_there() -> None:
    assert [kind.chips for kind in CATALOG.types] == [1, 4, 8, 16, 32, 64, 128, 256]
    assert CATALOG.types[-1].topology == "16x16"
    assert CATALOG.types[-1].chips == CATALOG.pod_chips


def test_zones_are_zones_and_their_regions_have_a_range_and_a_price() -> None:
    assert len(CATALOG.zones) == len(set(CATALOG.zones))
    for zone in CATALOG.zones:
        assert re.fullmatch(r"[a-z]+-[a-z]+\d-(ai\d)?[a-z]", zone)
        assert region_of(zone) in DEFAULT_RANGES
        assert CATALOG.price(zone).on_demand is not None


def test_prices_are_plausible() -> None:
    for region, price in CATALOG.prices.items():
        assert price.on_demand is not None, region
        for cheaper in (price.spot, price.flex_start):
            assert cheaper is None or 0.1 < cheaper < price.on_demand < 10
    assert CATALOG.price("us-east5-b").spot == 1.4033
    assert CATALOG.price("nowhere-east1-a").on_demand is None


def test_the_default_image_is_not_a_refused_one() -> None:
    assert CATALOG.default_runtime == "v2-alpha-tpuv6e"
    assert CATALOG.default_runtime not in CATALOG.refused_runtimes


def test_the_summary_says_how_old_the_facts_are() -> None:
    assert summary() == "8 v6e types, 8 zones (read 2026-11-20), prices of 6 regions (read 2026-08)"

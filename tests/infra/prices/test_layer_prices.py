"""Prices of each layer, out of the price book; docs/reference/prices.md."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from cli.__main__ import main
from infra.catalog.book import BOOK
from infra.engine import prices, registry
from infra.errors import InfraError
from infra.layers.monitoring import alerts
from infra.prices import row as prices_row
from infra.prices import table as prices_table
from infra.prices.row import NOTE, PriceRow, Rate, cost
from infra.prices.table import rates_table
from infra.settings.schema import Settings
from tests.infra.declared import EVERYTHING, OFF
from tests.infra.recording import BASE, parsed


def settings(more: Mapping[str, Any] = {}) -> Settings:
    return parsed({**BASE, **more})


def rows(layer: str, result: Settings) -> dict[str, PriceRow]:
    declared = registry.named(layer)
    return {price.what: price for price in declared.prices(result)}


def used(layer: str, result: Settings) -> list[str]:
    declared = registry.named(layer)
    return [f"{rate.what} {rate.unit}" for rate in declared.rates(result)]


def test_a_data_disk_is_its_space_and_its_throughput() -> None:
    result = rows("data", settings({"data:sizeGib": 2000, "data:throughputMibps": 4800}))
    disk = result["training-data-us-east5-b"]
    assert disk.hourly == pytest.approx((2000 * 0.08 + 4800 * 0.12) / 730)
    assert (disk.zone, disk.checked, disk.idle) == ("us-east5-b", False, True)
    assert "not read yet" in disk.source


def test_a_gateway_is_billed_by_its_machines_up_to_32_and_its_address() -> None:
    assert rows("network", settings()) == {}
    few = rows("network", settings({"network:cloudNat": True}))["Cloud NAT, 4 hosts"]
    assert few.hourly == pytest.approx(4 * 0.0014 + 0.005)
    assert not few.idle, "addresses go with the machines"
    slices = [{"name": "a", "topology": "16x16", "zones": ["us-east5-b"]}]
    most = {"data:throughputMibps": 6400, "network:cloudNat": True, "tpu:slices": slices}
    many = rows("network", settings(most))["Cloud NAT, 64 hosts"]
    assert many.hourly == pytest.approx(32 * 0.0014 + 0.005)
    assert any("through a gateway" in item for item in used("network", settings({"network:cloudNat": True})))
    assert not any("through a gateway" in item for item in used("network", settings()))


def gke(more: Mapping[str, Any] = {}) -> dict[str, PriceRow]:
    return rows("gke", settings({**OFF["gke"], **more}))


def test_a_cluster_is_its_fee_its_cpu_nodes_with_disks_and_its_slices() -> None:
    result = gke()
    assert result["cluster tpu"].hourly == 0.10
    assert result["3 CPU nodes with disks"].hourly == pytest.approx(3 * (0.194236 + 200 * 0.10 / 730))
    assert "1 CPU node with disks" in gke({"gke:cpuPoolNodes": 1})
    assert result["pool train"].hourly == pytest.approx(16 * 2.70)
    zones = {"gke:cpuPoolZones": ["us-east5-a", "us-east5-b", "us-east5-c"]}
    several = gke(zones)["9 CPU nodes with disks"]
    assert several.hourly == pytest.approx(9 * (0.194236 + 200 * 0.10 / 730)), "so many in each zone"
    assert all(item.checked for item in result.values())


def test_what_no_book_has_is_unknown_and_named() -> None:
    machine = {"gke:cpuPoolMachineType": "c4-standard-8", "gke:cpuPoolDiskType": "hyperdisk-balanced"}
    nodes = gke(machine)["3 CPU nodes with disks"]
    assert nodes.hourly is None
    assert "machine.c4-standard-8" in nodes.source
    assert "hyperdisk-balanced, space" in nodes.source


def test_only_a_pool_that_scales_costs_nothing_when_idle() -> None:
    assert gke()["pool train"].idle, "its nodes stay"
    pool = {"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b"}
    scaling = gke({"gke:tpuPools": [{**pool, "autoscaling": True}]})
    assert not scaling["pool train"].idle
    together = cost(list(scaling.values()))
    assert together.idle_hourly == pytest.approx((together.hourly or 0) - 16 * 2.70)


@pytest.mark.parametrize("name", ["train", "another"])
def test_a_budget_holds_node_pools_too_whatever_slices_are_called(name: str) -> None:
    pool = {"name": name, "acceleratorType": "v6e-8", "zone": "us-east5-b", "spot": True, "count": 2}
    slice_ = {"name": "train", "acceleratorType": "v6e-16", "zones": ["us-east5-b"], "spot": True}
    given = {"tpu:slices": [slice_], "gke:tpuPools": [{**pool, "autoscaling": True}]}
    assert prices.within_budget(settings(given)) == pytest.approx(32 * 1.4033)
    with pytest.raises(InfraError, match=r"^\$44\.91 an hour, fleet:dollarsPerHour allows \$44\n"):
        prices.within_budget(settings({**given, "fleet:dollarsPerHour": 44}))


MOVES = {"name": "moves", "acceleratorType": "v6e-8", "zones": ["us-east5-b"], "count": 5}
ELSEWHERE = {"storage:allowCrossRegion": True}


@pytest.mark.parametrize(("more", "hourly"), [
    ({}, 5 * 8 * 2.70),
    ({"fallbackZones": ["europe-west4-a"]}, 5 * 8 * 2.97),
    ({"fallbackZones": ["europe-west4-a"], "spot": True}, 5 * 8 * 1.782),
    ({"fallbackZones": ["us-central1-b"], "spot": True}, None),
    ({"reserved": True}, None),
])  # fmt: skip
def test_a_budget_holds_slices_where_they_cost_most_and_none_of_unknown_price(
    more: dict[str, Any], hourly: float | None
) -> None:
    given = {**ELSEWHERE, "tpu:slices": [{**MOVES, **more}]}
    within_budget = prices.within_budget(settings(given))
    assert within_budget == (None if hourly is None else pytest.approx(hourly))
    if hourly is None:
        with pytest.raises(InfraError, match=r"no known price of moves in .*: no budget can hold it"):
            prices.within_budget(settings({**given, "fleet:dollarsPerHour": 1_000_000}))


def test_a_budget_allows_just_what_it_says() -> None:
    given = {"tpu:slices": [MOVES]}
    assert prices.within_budget(settings({**given, "fleet:dollarsPerHour": 108})) == 108
    with pytest.raises(InfraError, match=r"^\$108\.00 an hour, fleet:dollarsPerHour allows \$107\n"):
        prices.within_budget(settings({**given, "fleet:dollarsPerHour": 107}))


def test_the_last_column_is_what_all_of_it_costs_on_demand() -> None:
    spot, key = {**MOVES, "spot": True}, {"storage:stateBucketName": "pulumi", "storage:stateKeyRing": "p"}
    result = prices.of(settings({**key, "tpu:slices": [spot, {**MOVES, "name": "r", "reserved": True}]}))
    rows = {line.split("  ")[0]: line.split()[-1] for line in prices_table.table(result).splitlines()}
    assert (rows["moves"], rows["r"]) == ("108.00", "108.00")
    others = sum(item.hourly or 0 for item in result if not item.chips)
    assert others > 0.01
    assert rows["sum"] == f"~{216 + others:,.2f}"


def test_a_rate_says_where_it_holds_and_whether_it_was_read() -> None:
    result = [
        Rate("a", "us-east5", 0.0004, "GiB", "s", checked=True),
        Rate("b", "", 0.25, "request", "s", checked=False),
        Rate("c", "", None, "hour", "s", checked=False),
    ]
    assert [line.split()[1] for line in rates_table(result).splitlines()[1:]] == [
        "0.0004",
        "~0.25",
        "unknown",
    ]
    anywhere = next(entry for entry in BOOK.entries.values() if entry.everywhere is not None)
    somewhere = next(entry for entry in BOOK.entries.values() if entry.regions)
    assert prices_row.rate(anywhere.id, "us-east5").region == ""
    assert prices_row.rate(somewhere.id, "us-east5").region == "us-east5"


def test_slices_cost_nothing_when_idle() -> None:
    assert [row.idle for row in rows("tpu", settings()).values()] == [False]


def test_storage_bills_a_key_by_its_versions_and_the_rest_by_use() -> None:
    assert rows("storage", settings()) == {}
    result = rows(
        "storage", settings({"storage:stateBucketName": "my-project-pulumi", "storage:stateKeyRing": "p"})
    )
    (key,) = result.values()
    assert key.hourly == pytest.approx(0.06 / 730)
    assert used("storage", settings())[0].endswith("GiB-month")
    cold = used("storage", settings({"storage:storageClass": "COLDLINE", "storage:allowCrossRegion": True}))
    assert any("COLDLINE" in item and item.endswith("GiB-month") for item in cold)
    assert any("reading COLDLINE GiB" in item for item in cold)
    assert any("between regions" in item for item in cold)


def pipeline(**more: Any) -> Settings:
    return settings({**OFF["pipeline"], **{f"pipeline:{key}": value for key, value in more.items()}})


def test_the_pipeline_bills_by_use_but_its_sweep_by_the_month() -> None:
    (job,) = rows("pipeline", pipeline()).values()
    assert job.hourly == pytest.approx(0.1 / 730)
    services = {item.partition(":")[0] for item in used("pipeline", pipeline())}
    assert services == {
        "Managed Service for Apache Spark (Dataproc)", "Cloud Run functions",
        "Artifact Registry", "Cloud Build", "Cloud Storage", "Cloud Logging", "Pub/Sub",
    }  # fmt: skip
    assert not any("Pub/Sub" in item for item in used("pipeline", pipeline(onSubmit=False)))


@pytest.mark.parametrize("tier", ["standard", "premium"])
def test_spark_is_billed_by_its_tier(tier: str) -> None:
    spark = [item for item in used("pipeline", pipeline(tier=tier)) if "Spark" in item]
    assert [item.rpartition(" ")[2] for item in spark] == ["DCU-hour", "GiB-hour"]
    assert all(f"{tier} tier" in item for item in spark)


def test_raw_text_that_goes_to_nearline_is_billed_when_it_is_read() -> None:
    assert not any("NEARLINE" in item for item in used("pipeline", pipeline()))
    assert any("reading NEARLINE" in item for item in used("pipeline", pipeline(rawNearlineDays=90)))


def test_training_is_billed_as_it_was_chosen() -> None:
    def chips(**more: Any) -> list[Rate]:
        declared = registry.named("pipeline")
        return [rate for rate in declared.rates(pipeline(**more)) if rate.unit == "chip-hour"]

    assert chips() == []
    (spot,) = chips(train="fleet", trainZone="us-east5-b")
    assert (spot.dollars, spot.region) == (1.4033, "us-east5")
    (requested,) = chips(train="fleet", trainZone="us-east5-b", trainSpot=False)
    assert requested.dollars == 2.70
    image = "us-east5-docker.pkg.dev/my-project/tpu/bundle@sha256:" + "0" * 64
    (vertex,) = chips(train="vertex", trainSlice="v6e-8", trainImage=image)
    assert vertex.dollars is None, "no price of ours, and none that is made up"


def test_monitoring_bills_each_condition_and_what_it_looks_at() -> None:
    def monitoring(**more: Any) -> Settings:
        base = OFF["monitoring"] if more.get("alerting", True) else {}
        return settings({**base, **{f"monitoring:{key}": value for key, value in more.items()}})

    own = alerts.of(())  # the layers of others are off
    every = sum(len(alert.conditions) for alert in own.values())
    assert every > len(own), "some alerts have two"
    (all_,) = rows("monitoring", monitoring()).values()
    assert all_.hourly == pytest.approx(every * 0.1 / 730)
    assert all_.idle
    fewer = rows("monitoring", monitoring(alerts=[{"name": "chips-idle", "enabled": False}]))
    assert set(fewer) == {f"{every - 2} conditions of alerts"}
    assert rows("monitoring", monitoring(alerting=False)) == {}
    assert [item.rpartition(" ")[2] for item in used("monitoring", monitoring(alerting=False))] == ["MiB"]
    assert not any("Pub/Sub" in item for item in used("monitoring", monitoring()))
    bus = monitoring(channels=[{"name": "bus", "topic": "tpu-alerts"}])
    assert any("Pub/Sub" in item for item in used("monitoring", bus))


def test_with_everything_on_each_rate_is_shown_once() -> None:
    rates = prices.rates(settings(EVERYTHING))
    assert len(rates) == len(set(rates)) > 10
    assert {"Artifact Registry", "Cloud Build", "Cloud KMS"} <= {
        item.what.partition(":")[0] for item in rates
    }


def test_all_that_a_layer_names_is_in_the_book(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that the book lacks would be a KeyError before a user, or a price that is missed by no one."""
    requested: list[str] = []
    get = type(BOOK).get
    monkeypatch.setattr(type(BOOK), "get", lambda self, id_: requested.append(id_) or get(self, id_))
    everything = settings(EVERYTHING)
    prices.of(everything)
    assert len(requested) >= 7
    unread = {"filestore.basic-hdd"}  # no price of it was read: shown as unknown
    assert set(requested) - unread <= set(BOOK.entries)


def test_unknown_is_never_zero_and_unverified_is_marked() -> None:
    known = PriceRow("a", 1.0, "s")
    guess, missing = PriceRow("b", 0.5, "s", checked=False), PriceRow("c", None, "s")
    assert cost([known]).cells == ("1.00", "24.00", "730.00", "730.00")
    assert cost([known, guess]).cells == ("~1.50", "~36.00", "~1,095.00", "~1,095.00")
    assert cost([known, missing]).cells == ("unknown",) * 4
    assert cost([]).cells == ("0.00",) * 4
    assert NOTE in prices_table.table([known, guess])
    assert NOTE not in prices_table.table([known])
    assert cost([known, missing]).as_json()["monthly"] is None


def test_prices_for_programs_have_totals_rows_and_rates(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["infra", "prices", "dev", "--json"]) == 0
    parsed = json.loads(capfd.readouterr().out)
    assert parsed["monthly"] == pytest.approx(730 * parsed["hourly"])
    assert {row["checked"] for row in parsed["rows"]} == {True, False}
    assert {"what", "dollars", "unit", "region", "source", "checked"} <= set(parsed["rates"][0])
    assert main(["infra", "prices", "dev"]) == 0
    shown = capfd.readouterr().out
    assert "0.0004" in shown
    assert "1,000 operations" in shown


def test_prices_are_summed_by_layer_and_are_of_the_layers_that_were_asked_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["infra", "prices", "dev", "--json"]) == 0
    everything = json.loads(capfd.readouterr().out)
    assert set(everything["layers"]) == {"storage", "network", "data", "tpu"}
    sums = [layer["hourly"] for layer in everything["layers"].values()]
    assert sum(sums) == pytest.approx(everything["hourly"])
    assert main(["infra", "prices", "dev", "data", "--json"]) == 0
    data_alone = json.loads(capfd.readouterr().out)
    assert data_alone["hourly"] == everything["layers"]["data"]["hourly"] < everything["hourly"]
    assert main(["infra", "prices", "dev"]) == 0
    shown = capfd.readouterr().out
    assert re.search(r"^layer .*\n(storage|network) ", shown, re.MULTILINE)
    assert shown.split()[:3] == ["what", "layer", "nodes"]
    assert re.search(r"^tpu-dev +tpu +1 +v6e-", shown, re.MULTILINE), "each row names its layer"
    assert main(["infra", "prices", "dev", "data"]) == 0
    assert capfd.readouterr().out.split()[:2] == ["what", "nodes"], "one layer needs no column"
    assert main(["infra", "prices", "dev", "gke"]) == 2
    assert "gke is off in dev" in capfd.readouterr().err

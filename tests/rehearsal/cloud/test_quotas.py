"""Quotas of Cloud TPU: what Service Usage lists is what nodes.create holds against."""

from __future__ import annotations

from typing import Any

import pytest
from tpu_lab import REGION, ZONE, Lab, P

from infra.google.failures import Kind, classify
from rehearsal.cloud.services.tpu.quotas import GRANTED, Quotas
from tests.emulated import NUMBER

METRICS = f"serviceusage.googleapis.com/v1beta1/{P}/services/tpu.googleapis.com/consumerQuotaMetrics"
REVOCABLE = "TPUV6EPreemptiblePerProjectPer{}ForTPUAPI"


def buckets(answer: Any, metric: str, unit: str) -> list[dict[str, Any]]:
    (result,) = [item for item in answer["metrics"] if item["metric"] == f"tpu.googleapis.com/{metric}"]
    (limit,) = [item for item in result["consumerQuotaLimits"] if item["unit"] == unit]
    listed: list[dict[str, Any]] = limit["quotaBuckets"]
    return listed


async def test_limits_are_listed_for_each_place_and_a_zero_is_left_out(lab: Lab) -> None:
    lab.quotas.set(REVOCABLE.format("Zone"), ZONE, 0)
    status, answer = await lab.request("GET", f"{METRICS}?view=FULL")
    assert status == 200
    zones = buckets(answer, "tpu-v6e-preemptible", "1/{project}/{zone}")
    assert zones[0] == {}, "what holds where nothing else is said comes first"
    assert {"dimensions": {"zone": ZONE}} in zones
    regions = buckets(answer, "tpu-v6e", "1/{project}/{region}")
    assert {"dimensions": {"region": REGION}, "effectiveLimit": str(GRANTED)} in regions
    assert answer["metrics"][0]["name"].startswith(f"projects/{NUMBER}/services/tpu.googleapis.com/")


async def test_limits_are_listed_by_page_and_by_service(lab: Lab) -> None:
    _, first = await lab.request("GET", f"{METRICS}?pageSize=1")
    _, rest = await lab.request("GET", f"{METRICS}?pageSize=1&pageToken={first['nextPageToken']}")
    assert len({item["metric"] for item in first["metrics"] + rest["metrics"]}) == 2
    assert "nextPageToken" not in rest
    other = METRICS.replace("services/tpu.googleapis.com", "services/dataproc.googleapis.com")
    assert (await lab.request("GET", other))[0] == 501
    compute = METRICS.replace("services/tpu.googleapis.com", "services/compute.googleapis.com")
    _, cpus = await lab.request("GET", compute)
    assert [item["metric"].partition("/")[2] for item in cpus["metrics"]] == [
        "cpus", "tpus_per_tpu_family", "preemptible_tpu_v6e",
    ]  # fmt: skip
    (family,) = cpus["metrics"][1]["consumerQuotaLimits"]
    assert family["unit"] == "1/{project}/{region}/{tpu_family}"
    assert {"region": REGION, "tpu_family": "CT6E"} in [
        bucket.get("dimensions") for bucket in family["quotaBuckets"]
    ]


async def test_a_node_beyond_a_limit_is_refused_in_googles_words(lab: Lab) -> None:
    lab.quotas.set(REVOCABLE.format("Zone"), ZONE, 24)
    await lab.ready("a")  # 16 chips
    status, body = await lab.create("b")
    output = f"Quota limit '{REVOCABLE.format('Zone')}' has been exceeded. Limit: 24 in zone {ZONE}."
    assert (status, body["error"]["status"], body["error"]["message"]) == (429, "RESOURCE_EXHAUSTED", output)
    assert classify(f"{output} {body['error']['errors'][0]['reason']}", status).kind is Kind.QUOTA
    await lab.ready("c", acceleratorType="v6e-8")
    await lab.ready("d", schedulingConfig={}, acceleratorType="v6e-8")


async def test_the_regions_limit_holds_for_all_its_zones_and_both_are_named(lab: Lab) -> None:
    for dimension, place in (("Region", REGION), ("Zone", ZONE)):
        lab.quotas.set(REVOCABLE.format(dimension), place, 0)
    status, body = await lab.create()
    names = f"{REVOCABLE.format('Region')},{REVOCABLE.format('Zone')}"
    output = f"Quota limit '{names}' has been exceeded. Limit: 0,0 in region {REGION},zone {ZONE}."
    assert (status, body["error"]["message"]) == (429, output)


async def test_a_preempted_node_holds_its_chips_until_it_is_deleted(lab: Lab) -> None:
    lab.quotas.set(REVOCABLE.format("Region"), REGION, 16)
    await lab.ready("a")
    await lab.tpu.preempt("a", notice=False)
    assert (await lab.create("b"))[0] == 429
    await lab.finish(await lab.api("DELETE", "nodes/a"))
    await lab.ready("b")


def test_an_unknown_quota_is_said() -> None:
    quotas = Quotas()
    with pytest.raises(ValueError, match="no quota 'TPUV7' in 'us-east5-b'; the names are CPUS-per-"):
        quotas.set("TPUV7", ZONE, 8)
    with pytest.raises(ValueError, match="-1 must be 0 or more"):
        quotas.set(REVOCABLE.format("Zone"), ZONE, -1)

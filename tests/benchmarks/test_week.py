"""A day over the emulated cloud's API, and what a look at a thousand costs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import fleet, status, week
from benchmarks.emulated import BUCKET, PROJECT, Emulated
from benchmarks.virtual import HOUR_S, Climate, Weather
from fleet.google import Google
from infra.catalog import CATALOG

HARSH = Climate(preemption_h=4, wave_h=4, dry_h=1, dry_for_h=0.5, ill_h=1)
SPAN_S = 4 * HOUR_S
MEMBERS = [member for member in fleet.fleet(64) if member.zone in CATALOG.zones[:2]]


@pytest.fixture(name="cloud")
def _cloud(tmp_path: Path) -> Iterator[Emulated]:
    with Emulated(tmp_path, {member.zone for member in MEMBERS}, week.durations(HARSH)) as cloud:
        yield cloud


def span(cloud: Emulated, kills: int = 0, span_s: float = SPAN_S) -> week.Week:
    weather = Weather({member.key: member.zone for member in MEMBERS}, HARSH, span_s, seed=3)
    return week.Week(cloud, MEMBERS, weather, span_s, kills)


@pytest.mark.prove
def test_controllers_over_the_api_bring_back_what_is_lost_and_delete_nothing_healthy(cloud: Emulated) -> None:
    """Though they are killed between their requests, each followed by another."""
    one = span(cloud, kills=10)
    assert one.create_all() < 3 * HARSH.create_s
    one.live()
    reported = one.told()
    assert reported["lost"] > 10
    assert reported["kills"] >= 5
    assert reported["stock_outs"], "no creation met a stock-out"
    assert reported["errors"], "no request met an error"
    assert len(reported["recoveries_s"]) >= 0.75 * reported["lost"]  # the last are on their way
    assert min(reported["recoveries_s"]) > HARSH.delete_s + HARSH.create_s / 2
    assert min(reported["over_s"]) >= 0
    assert set(reported["deletions"]) == {"PREEMPTED"}
    assert reported["healthy_deleted"] == reported["refused_by_description"] == 0
    assert reported["methods"]["tpu.projects.locations.nodes.delete"] >= reported["deletions"]["PREEMPTED"]
    assert 0.7 < reported["available"] < 1


@pytest.mark.prove
def test_the_cloud_says_when_a_healthy_node_was_deleted(cloud: Emulated) -> None:
    """By somebody who takes any for useless: else a count of none would say nothing."""
    one = span(cloud, span_s=HOUR_S / 2)
    one.create_all()
    google = Google(PROJECT, BUCKET, session=cloud.session)
    google.delete(MEMBERS[0].zone, MEMBERS[0].name)
    one.live()
    reported = one.told()
    assert reported["healthy_deleted"] == 1
    assert reported["deletions"]["READY"] == 1


@pytest.mark.slow
def test_status_of_a_thousand_asks_no_more_than_of_a_few() -> None:
    """Pages, and no request for each member; how long it takes is a benchmark's."""

    def requests(count: int) -> int:
        return sum(status.measure(fleet.fleet(count), rounds=1)["requests"].values())

    few = requests(8)
    assert 0 < few == requests(1000)

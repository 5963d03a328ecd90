"""Every block of every table has a source and the day it was read."""

import datetime
from pathlib import Path

import pytest

import google_facts
from google_facts import regions
from google_facts.agents import AGENTS, is_googles, of_address

TABLES = sorted(path.stem for path in Path(google_facts.__file__).parent.glob("*.toml"))


@pytest.mark.parametrize("name", TABLES)
def test_blocks_have_a_source_and_a_date(name: str) -> None:
    blocks = google_facts.table(name)
    assert blocks
    for block, values in blocks.items():
        assert "://" in values["source"], block
        assert datetime.date.fromisoformat(values["read"]) <= datetime.date.today(), block
        assert len(values) > 2, block


def test_the_nearest_region_has_the_service_and_is_on_the_same_continent() -> None:
    for service, absent in regions.ABSENT.items():
        for region, nearest in absent.items():
            assert regions.nearest(service, region) == nearest
            assert not regions.lacks(service, nearest)
            assert regions.lacks(service, f"{region}-b"), "in its zones neither"
            assert region.partition("-")[0] == nearest.partition("-")[0]


def test_agents_have_addresses_of_their_own_and_are_made_somehow() -> None:
    assert len({agent.domain for agent in AGENTS.values()}) == len(AGENTS)
    for name, agent in AGENTS.items():
        assert agent.made <= {"enable", "identity", "get", "channel", "use"}, name
        assert agent.made, name
        assert of_address(agent.email("1")) is agent
    assert not is_googles("tpu-training@my-project.iam.gserviceaccount.com")

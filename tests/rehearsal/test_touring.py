"""Single requests as the owner: what is filled in, what is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rehearsal.cloud.services.monitoring.telemetry import thresholds
from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import touring
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.tour import Guide, lives
from rehearsal.scenario.tour_steps import Request

TOPICS = ("pubsub.projects.topics.create", "pubsub.projects.topics.delete")


@pytest.fixture(name="sent")
def _sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    guide = Guide(lambda: pytest.fail("no client is needed"), TOPICS, {"project": "p"})
    sent: list[tuple[str, str, Any]] = []
    monkeypatch.setattr(guide, "send", lambda *request: sent.append(request))
    monkeypatch.setattr(touring, "guide", lambda _: guide)
    return sent


def test_a_request_is_sent_with_the_storys_own_words(sent: list[Any]) -> None:
    step = Request("pubsub.v1.projects.topics.create", {"name": "projects/$project/topics/t", "body": {}})
    touring.request(cast("Scene", None), step)
    assert sent == [("v1", TOPICS[0], {"name": "projects/p/topics/t", "body": {}})]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("pubsub.v1.projects.topics.creat", "isn't emulated; did you mean pubsub.projects.topics.create?"),
        ("webrisk.v1.uris.search", "webrisk.uris.search isn't emulated$"),
    ],
)
def test_what_is_not_served_is_refused_with_the_nearest(sent: list[Any], method: str, said: str) -> None:
    with pytest.raises(ScenarioFailed, match=said.replace("?", r"\?")):
        touring.request(cast("Scene", None), Request(method))
    assert not sent


def test_conditions_of_the_tours_alerts_can_be_evaluated_whenever_that_is_due() -> None:
    policies = [life.create for life in lives() if life.collection.endswith("alertPolicies")]
    conditions = [one["conditionThreshold"] for each in policies for one in each["conditions"]]
    assert conditions
    for one in conditions:
        thresholds.check(one)

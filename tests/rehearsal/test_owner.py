"""Single requests as the owner: `$WORD`s are filled in, unknown methods are refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import owner
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import Step

TOPICS = ("pubsub.projects.topics.create", "pubsub.projects.topics.delete")


@pytest.fixture(name="sent")
def _sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    client = owner.Owner(lambda: pytest.fail("no client is needed"), TOPICS, {"project": "p"})
    sent: list[tuple[str, str, Any]] = []
    monkeypatch.setattr(client, "send", lambda *request: sent.append(request))
    monkeypatch.setattr(owner, "owner", lambda _: client)
    return sent


def test_words_of_the_scenario_are_filled_in(sent: list[Any]) -> None:
    step = owner.request(
        "pubsub.v1.projects.topics.create", {"name": "projects/$project/topics/t", "body": {}}
    )
    step.act(cast("Scene", None))
    assert sent == [("v1", TOPICS[0], {"name": "projects/p/topics/t", "body": {}})]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            owner.request("pubsub.v1.projects.topics.creat"),
            r"isn't emulated; did you mean pubsub.projects.topics.create\?",
        ),
        (owner.request("webrisk.v1.uris.search"), "webrisk.uris.search isn't emulated$"),
        (
            owner.request("pubsub.v1.projects.topics.create", {"name": "projects/$projekt"}),
            r"unknown \$projekt in 'projects/\$projekt'",
        ),
    ],
)
def test_a_wrong_request_is_refused(sent: list[Any], step: Step, message: str) -> None:
    with pytest.raises(ScenarioFailed, match=message):
        step.act(cast("Scene", None))
    assert not sent

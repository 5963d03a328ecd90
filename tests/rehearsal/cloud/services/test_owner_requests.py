"""The owner's client of scenarios, against the emulated services: refusals name their request."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httplib2
import pytest
from google_auth_httplib2 import AuthorizedHttp
from official import OWNER, PROJECT
from services_front import Services

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.owner import Owner


@pytest.fixture(name="owner")
def _owner(services: Services) -> Owner:
    class Loopback(httplib2.Http):  # type: ignore[misc]
        def request(
            self, uri: str, method: str = "GET", body: Any = None, headers: Any = None, **more: Any
        ) -> Any:
            parts = urlsplit(uri)
            url = parts._replace(scheme="http", netloc=f"127.0.0.1:{services.port}").geturl()
            return super().request(url, method, body, {**(headers or {}), "Host": parts.netloc}, **more)

    return Owner(lambda: AuthorizedHttp(services.credentials(OWNER), http=Loopback()), (), {})


def test_an_answer_is_returned(owner: Owner) -> None:
    name = f"projects/{PROJECT}/topics/topic"
    assert owner.send("v1", "pubsub.projects.topics.create", {"name": name, "body": {}})["name"] == name


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("get", {"topic": f"projects/{PROJECT}/topics/none"}, "pubsub.projects.topics.get: 404 .*none"),
        ("create", {"name": "nowhere", "body": {}}, "pubsub.projects.topics.create: .*does not match"),
    ],
)
def test_a_refused_request_is_named(
    owner: Owner, method: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioFailed, match=message):
        owner.send("v1", f"pubsub.projects.topics.{method}", arguments)


def test_a_resource_is_ready_once_its_request_has_returned(owner: Owner) -> None:
    place = f"projects/{PROJECT}/locations/us-east5"
    network = {"name": "theirs", "autoCreateSubnetworks": False}
    owner.send("v1", "compute.networks.insert", {"project": PROJECT, "body": network})
    cluster = {"name": "theirs", "initialNodeCount": 1, "network": "theirs"}
    create = {"parent": place, "body": {"cluster": cluster}}
    assert owner.send("v1", "container.projects.locations.clusters.create", create)["status"] == "DONE"
    update = {"name": f"{place}/clusters/theirs", "body": {"update": {"desiredLoggingService": "none"}}}
    assert owner.send("v1", "container.projects.locations.clusters.update", update)["status"] == "DONE"

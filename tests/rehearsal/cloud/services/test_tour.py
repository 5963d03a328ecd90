"""The tour of the step `tour`: what its calls are made of, and that nothing is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httplib2
import pytest
from google_auth_httplib2 import AuthorizedHttp
from official import OWNER, PROJECT
from services_front import Services

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.tour import Guide, Life, lives

VALUES = {
    "project": PROJECT,
    "region": "us-east5",
    "zone": "us-east5-b",
    "account": f"worker@{PROJECT}.iam.gserviceaccount.com",
}


@pytest.fixture
def guide(services: Services) -> Guide:
    class Loopback(httplib2.Http):  # type: ignore[misc]
        def request(
            self, uri: str, method: str = "GET", body: Any = None, headers: Any = None, **more: Any
        ) -> Any:
            parts = urlsplit(uri)
            there = parts._replace(scheme="http", netloc=f"127.0.0.1:{services.port}").geturl()
            return super().request(there, method, body, {**(headers or {}), "Host": parts.netloc}, **more)

    served = [one for some in services.cloud.front_door.covered().values() for one in some]
    return Guide(lambda: AuthorizedHttp(services.credentials(OWNER), http=Loopback()), served, VALUES)


NEVER = {"storage": ["storage.objects.restore"]}  # what the tour doesn't call


@pytest.mark.parametrize("api", ["storage", "pubsub", "compute"])
def test_a_life_calls_every_method_of_its_collections_and_leaves_nothing(
    services: Services, guide: Guide, api: str
) -> None:
    before = set(services.cloud.world.directory)
    for life in lives():
        if life.collection.startswith(f"{api}."):
            guide.take(life)
    methods = services.cloud.front_door.covered()[api]
    assert [method for method in methods if method not in guide.called] == NEVER.get(api, [])
    left = set(services.cloud.world.directory) - before
    assert not [name for name in left if "tour" in name]


@pytest.mark.parametrize(
    ("life", "said"),
    [
        (
            {"collection": "pubsub.v1.projects.topics", "name": f"projects/{PROJECT}/topics/none"},
            "pubsub.projects.topics.get: 404 .*none",
        ),
        (
            {"collection": "pubsub.v1.projects.topics", "parent": "projects/$projekt"},
            "nobody knows \\$projekt of 'projects/\\$projekt'",
        ),
        (
            {"collection": "pubsub.v1.projects.topics", "parent": "nowhere"},
            "pubsub.projects.topics.create: .*does not match",
        ),
    ],
)
def test_what_is_refused_is_named(guide: Guide, life: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioFailed, match=said):
        guide.take(Life(**life))


def test_a_key_that_no_life_has_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tour.yaml"
    path.write_text("- {collection: pubsub.v1.projects.topics, creat: {}}")
    with pytest.raises(ScenarioFailed, match=r"tour.yaml\[0\].creat: unknown key; did you mean create?"):
        lives(path)

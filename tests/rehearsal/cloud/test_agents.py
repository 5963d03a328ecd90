"""Service agents: none is there before what makes it, and until then none can be granted a role."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cloud_front import NUMBER, OWNER, PROJECT, CloudFront, Reply

from google_facts.agents import AGENTS, Made
from rehearsal.cloud.core.world import Lags
from rehearsal.cloud.services.serviceusage import NEW_PROJECT

P = f"projects/{PROJECT}"
_CHANNEL = {"type": "pubsub", "displayName": "bus", "labels": {"topic": f"{P}/topics/alerts"}}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[CloudFront]:
    """A project as it is when it is new."""
    with closing(CloudFront(tmp_path, enabled_apis=NEW_PROJECT)) as front:
        yield front


def granted(cloud: CloudFront, email: str, role: str = "roles/pubsub.publisher") -> Reply:
    """The answer to a grant on the project."""
    url = f"cloudresourcemanager.googleapis.com/v1/{P}"
    policy = cloud.request("POST", f"{url}:getIamPolicy", {}).json
    policy["bindings"].append({"role": role, "members": [f"serviceAccount:{email}"]})
    return cloud.request("POST", f"{url}:setIamPolicy", {"policy": policy})


def enable(cloud: CloudFront, api: str) -> None:
    started = cloud.request(
        "POST", f"serviceusage.googleapis.com/v1/{P}/services/{api}.googleapis.com:enable"
    )
    cloud.until_done("serviceusage.googleapis.com/v1", started.json["name"])


def identity(cloud: CloudFront, api: str) -> None:
    url = f"serviceusage.googleapis.com/v1beta1/{P}/services/{api}.googleapis.com:generateServiceIdentity"
    cloud.until_done("serviceusage.googleapis.com/v1beta1", cloud.request("POST", url, {}).json["name"])


def get(cloud: CloudFront) -> None:
    assert cloud.request("GET", f"storage.googleapis.com/storage/v1/{P}/serviceAccount").status == 200


def channel(cloud: CloudFront) -> None:
    enable(cloud, "pubsub")
    cloud.request("PUT", f"pubsub.googleapis.com/v1/{P}/topics/alerts", {})
    assert (
        cloud.request("POST", f"monitoring.googleapis.com/v3/{P}/notificationChannels", _CHANNEL).status
        == 200
    )


MAKE = {
    "enable": lambda cloud, name: enable(cloud, name),
    "identity": lambda cloud, name: identity(cloud, name),
    "get": lambda cloud, _: get(cloud),
    "channel": lambda cloud, _: channel(cloud),
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name, agent in AGENTS.items()
        for how in sorted(agent.made)
        if how != "use" and name != "compute"
    ],
)
def test_an_agent_is_granted_nothing_before_it_is_made(cloud: CloudFront, name: str, how: str) -> None:
    email = AGENTS[name].email(NUMBER)
    refused = granted(cloud, email)
    assert (refused.status, refused.error) == (400, f"Service account {email} does not exist.")
    MAKE[how](cloud, name)
    assert granted(cloud, email).status == 200


def test_google_grants_a_role_to_an_agent_that_it_makes_itself(cloud: CloudFront) -> None:
    """An agent made by request has none: https://cloud.google.com/iam/docs/create-service-agents."""
    agent = AGENTS["cloudfunctions"]
    who, permission = agent.email(NUMBER), "storage.buckets.create"
    identity(cloud, "cloudfunctions")
    assert not cloud.iam.allowed(who, permission, P)
    enable(cloud, "eventarc")
    assert not cloud.iam.allowed(AGENTS["eventarc"].email(NUMBER), permission, P)


def test_the_agent_of_functions_comes_with_its_role(cloud: CloudFront) -> None:
    enable(cloud, "cloudfunctions")
    who = AGENTS["cloudfunctions"].email(NUMBER)
    assert cloud.iam.allowed(who, "storage.buckets.create", P)
    assert not cloud.iam.allowed(who, "resourcemanager.projects.setIamPolicy", P)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[CloudFront]:
    """Such a project where agents take their time, on a clock that stands still."""
    with closing(
        CloudFront(tmp_path, enabled_apis=NEW_PROJECT, clock_rate=0.0, lags=Lags(0, 0, 0, 180, 0))
    ) as front:
        yield front


def test_the_role_of_a_new_agent_counts_later(slow: CloudFront) -> None:
    who = AGENTS["cloudfunctions"].email(NUMBER)
    slow.call(_make(slow, "cloudfunctions", "enable"))
    for jump_s, counts in ((179, False), (1, True)):
        slow.jump(jump_s)
        assert slow.iam.allowed(who, "artifactregistry.repositories.get", P) is counts


def test_the_agent_of_a_new_channel_is_named_later(slow: CloudFront) -> None:
    email = AGENTS["monitoring-notification"].email(NUMBER)
    slow.call(_make(slow, "monitoring", "channel"))
    slow.jump(179)
    refused = granted(slow, email)
    assert (refused.status, refused.error) == (400, f"Service account {email} does not exist.")
    slow.jump(1)
    assert granted(slow, email).status == 200


async def _make(cloud: CloudFront, api: str, how: Made) -> None:
    cloud.iam.make_agents(api, how)


def test_the_first_tpu_vm_makes_the_agents_of_tpus(cloud: CloudFront) -> None:
    email = AGENTS["tpu-vm"].email(NUMBER)
    assert granted(cloud, email).status == 400
    cloud.call(_make(cloud, "tpu", "use"))
    assert granted(cloud, email).status == 200


def test_an_agent_that_no_table_has_is_not_taken_to_be_there(cloud: CloudFront) -> None:
    refused = granted(cloud, f"service-{NUMBER}@gcp-sa-dlp.iam.gserviceaccount.com")
    assert (refused.status, "is not emulated" in refused.error) == (501, True)
    cloud.world.mistakes.clear()
    assert granted(cloud, OWNER.replace("example.com", "other.iam.gserviceaccount.com")).status == 200

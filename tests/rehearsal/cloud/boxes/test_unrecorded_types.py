"""Types of the stand-in that weren't recorded: their requests and their life in the emulated cloud."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from boxed_front import OWNER, PROJECT, REGION, Boxed, L, P

from rehearsal.providers.gcp.provider import Provider
from rehearsal.providers.gcp.settings import Settings

pytestmark = pytest.mark.root
IDENTITY = "gcp:projects/serviceIdentity:ServiceIdentity"
MEMBER = "gcp:cloudrunv2/serviceIamMember:ServiceIamMember"


class Driven:
    """The provider, in the network of the cloud; `sent` is what it has sent since it was last asked."""

    def __init__(self, boxed: Boxed) -> None:
        self._boxed, self._seen = boxed, 0
        token = self.run(lambda: boxed.cloud.iam.mint(OWNER).value)
        self.provider = Provider()
        self.provider.configure(Settings(project=PROJECT, region=REGION, access_token=token))
        self.sent()

    def run(self, work: Callable[[], Any]) -> Any:
        return self._boxed.call(asyncio.to_thread(work))

    def checked(self, token: str, inputs: dict[str, Any]) -> dict[str, Any]:
        check = self.provider.check(token, inputs, {}, "thing", b"seed")
        assert not check.failures, check.failures
        return dict(check.inputs)

    def sent(self) -> list[str]:
        """Method and path of each request but those on operations."""
        since = self._boxed.cloud.requests.since(self._seen)
        self._seen = since["next"]
        return [
            f"{request['http_method']} {request['host'].partition('.')[0]}{request['path']}"
            for request in since["requests"]
            if "/operations/" not in request["path"]
        ]


@pytest.fixture
def driven(boxed: Boxed, monkeypatch: pytest.MonkeyPatch) -> Driven:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(boxed.folder / "tls" / "bundle.pem"))
    return Driven(boxed)


def test_an_agent_is_made_read_without_a_request_and_never_deleted(boxed: Boxed, driven: Driven) -> None:
    news = driven.checked(IDENTITY, {"service": "eventarc.googleapis.com"})
    id_, state = driven.run(lambda: driven.provider.create(IDENTITY, news))
    email = "service-123456789012@gcp-sa-eventarc.iam.gserviceaccount.com"
    assert (state["email"], state["member"]) == (email, f"serviceAccount:{email}")
    path = f"/v1beta1/{P}/services/eventarc.googleapis.com:generateServiceIdentity"
    assert driven.sent() == [f"POST serviceusage{path}?alt=json"]
    assert email in boxed.cloud.iam.agents
    assert driven.run(lambda: driven.provider.read(IDENTITY, id_, state))["email"] == email
    assert not driven.provider.diff(IDENTITY, state, news).differences
    driven.run(lambda: driven.provider.delete(IDENTITY, id_, state))
    assert driven.sent() == []
    assert email in boxed.cloud.iam.agents


def test_who_may_invoke_a_service_is_a_member_of_its_policy(boxed: Boxed, driven: Driven) -> None:
    email = boxed.account("invokes")
    image = "us-docker.pkg.dev/cloudrun/container/hello"
    body = {"template": {"containers": [{"image": image}], "serviceAccount": email}}
    url = f"run.googleapis.com/v2/{L}/services?serviceId=invoked"
    boxed.done("run.googleapis.com/v2", boxed.answer("POST", url, body))
    member = {"role": "roles/run.invoker", "member": f"serviceAccount:{email}"}
    news = driven.checked(MEMBER, {"name": "invoked", "location": REGION, **member})
    driven.sent()
    id_, state = driven.run(lambda: driven.provider.create(MEMBER, news))
    name = f"{L}/services/invoked"
    sent = driven.sent()
    assert sent[0] == f"GET run/v2/{name}:getIamPolicy?alt=json"
    assert f"POST run/v2/{name}:setIamPolicy?alt=json" in sent
    assert id_ == f"{name}/roles/run.invoker/serviceAccount:{email}"
    assert boxed.cloud.iam.allowed(email, "run.routes.invoke", name)
    assert not driven.provider.diff(MEMBER, state, news).differences
    driven.run(lambda: driven.provider.delete(MEMBER, id_, state))
    assert not boxed.cloud.iam.allowed(email, "run.routes.invoke", name)

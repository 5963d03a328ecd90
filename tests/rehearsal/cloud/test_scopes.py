"""Names of an account at a cluster's API server: by its token's scopes, its address or a number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import google.auth
import pytest
from cloud_front import PROJECT, REFRESH_TOKEN, CloudFront
from tpu_lab import Lab

from google_facts.scopes import EMAIL, EVERYTHING, LOGIN
from infra.google import client
from rehearsal.cloud.machines.pods import PodGuests
from rehearsal.cloud.services.container.control_planes import Clusters

P = f"projects/{PROJECT}"
WHO = f"pipeline-run@{PROJECT}.iam.gserviceaccount.com"
CLUSTER = f"{P}/locations/us-east5/clusters/tpu"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[CloudFront]:
    with closing(CloudFront(tmp_path)) as front:
        made = front.request(
            "POST", f"iam.googleapis.com/v1/{P}/serviceAccounts", {"accountId": WHO.split("@")[0]}
        )
        assert made.status == 200, made.body
        yield front


def called(cloud: CloudFront, token: str) -> str:
    clusters = Clusters(cloud.cloud.world, cloud.cloud.iam, cloud.cloud.faults)
    return str(cloud.call(clusters.account({"token": token}))["account"])


async def minted(cloud: CloudFront, scopes: tuple[str, ...]) -> str:
    return cloud.cloud.iam.mint(WHO, scopes=scopes).value


def test_a_service_account_without_the_scope_of_its_address_is_a_number(cloud: CloudFront) -> None:
    """As the client's tokens once were, so that RBAC refused who the team's members list."""
    resource = cloud.request("GET", f"iam.googleapis.com/v1/{P}/serviceAccounts/{WHO}").json
    assert called(cloud, cloud.call(minted(cloud, (EVERYTHING,)))) == resource["uniqueId"]
    assert called(cloud, cloud.call(minted(cloud, LOGIN))) == WHO


def test_iam_decides_about_the_account_whatever_it_is_called(cloud: CloudFront) -> None:
    clusters = Clusters(cloud.cloud.world, cloud.cloud.iam, cloud.cloud.faults)
    token = cloud.call(minted(cloud, (EVERYTHING,)))
    number = cloud.call(clusters.account({"token": token}))["account"]
    cloud.grant(P, "roles/container.admin", f"serviceAccount:{WHO}")
    requested = {"group": "", "resource": "pods", "subresource": "", "verb": "list"}
    assert cloud.call(clusters.access({**requested, "account": number, "cluster": CLUSTER}))["allowed"]


@pytest.mark.parametrize("scopes", [(EVERYTHING,), LOGIN])
def test_a_login_and_an_impersonation_have_the_scopes_that_they_name(
    cloud: CloudFront, scopes: tuple[str, ...]
) -> None:
    form = {"grant_type": "refresh_token", "refresh_token": REFRESH_TOKEN, "scope": " ".join(scopes)}
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = cloud.request("POST", "oauth2.googleapis.com/token", urlencode(form).encode(), headers=kind)
    assert answer.json["scope"] == " ".join(scopes)
    assert ("@" in called(cloud, answer.json["access_token"])) is (EMAIL in scopes)
    cloud.grant(
        f"{P}/serviceAccounts/{WHO}", "roles/iam.serviceAccountTokenCreator", "user:owner@example.com"
    )
    url = f"iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{WHO}:generateAccessToken"
    made = cloud.request("POST", url, {"scope": list(scopes)}).json["accessToken"]
    assert ("@" in called(cloud, made)) is (EMAIL in scopes)
    wrong = urlencode({**form, "scope": "https://www.googleapis.com/auth/drive"}).encode()
    refused = cloud.request("POST", "oauth2.googleapis.com/token", wrong, headers=kind)
    assert (refused.status, refused.json["error"]) == (400, "invalid_scope")


@pytest.mark.parametrize("serverless", [True, False])
async def test_a_function_names_its_scopes_and_a_machine_has_those_it_was_made_with(
    tmp_path: Path, serverless: bool
) -> None:
    from aiohttp.test_utils import TestClient, TestServer

    from rehearsal.cloud.machines.metadata import MetadataServer

    lab = Lab(tmp_path)
    guests = PodGuests(lab.world, lab.tpu)
    guests.enter("127.0.0.1", "function", WHO)
    guests._pods["127.0.0.1"] = replace(guests._pods["127.0.0.1"], serverless=serverless)
    lab.world.directory[f"{P}/serviceAccounts/{WHO}"] = {"email": WHO, "uniqueId": "103"}
    server = MetadataServer(lab.world, guests, lab.iam, lab.doorway)
    url = "/computeMetadata/v1/instance/service-accounts/default/token"
    subjects = []
    async with TestClient(TestServer(server.app())) as machine:
        for query in ({}, {"scopes": ",".join(LOGIN)}):
            async with machine.get(url, params=query, headers={"Metadata-Flavor": "Google"}) as answer:
                token = lab.iam.find_token((await answer.json())["access_token"])
                assert token
                subjects.append(EMAIL in token.scopes)
    assert subjects == [False, serverless]


def test_programs_ask_for_the_address_too(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[Any] = []

    def default(scopes: Any) -> Any:
        requested.append(scopes)
        return google.auth.credentials.AnonymousCredentials(), ""  # type: ignore[no-untyped-call]

    monkeypatch.setattr(google.auth, "default", default)
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN", raising=False)
    client._login()
    assert requested == [LOGIN]

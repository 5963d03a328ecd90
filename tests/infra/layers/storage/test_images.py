"""Images of slices at the emulated Artifact Registry: what keeps hosts from one, and what lets them pull."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from infra.doctor import images as doctor
from infra.doctor.checks import Target, checks
from infra.engine import plan
from infra.errors import InputError
from infra.google.client import Client
from infra.layers.storage.images import problems
from infra.settings.schema import Settings
from rehearsal.scenario.imaging import push
from tests.emulated import EVERY_API, OWNER, PROJECT, ZONES, Emulated
from tests.infra.declared import OFF
from tests.infra.layers.storage.test_secrets import Session
from tests.infra.recording import BASE, parsed, run

API, LOCATION = "artifactregistry.googleapis.com/v1", f"projects/{PROJECT}/locations/us-east5"
HOST = "us-east5-docker.pkg.dev"
GRANTED, LONELY = f"{HOST}/{PROJECT}/granted", f"{HOST}/{PROJECT}/lonely"
HOSTS = f"tpu-training@{PROJECT}.iam.gserviceaccount.com"
STRANGER = "user:ada@example.com"
MEMBERS = "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    emulated = Emulated(tmp_path_factory.mktemp("images"), zones=ZONES, enabled_apis=EVERY_API)
    account = {"accountId": "tpu-training"}
    emulated.request("POST", f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts", account)
    for name in ("granted", "lonely"):
        url = f"{API}/{LOCATION}/repositories?repositoryId={name}"
        assert emulated.request("POST", url, {"format": "DOCKER"}).status == 200
    recorded = run("storage", {"gcp:project": PROJECT, "storage:repositories": [GRANTED]})
    for item in recorded.of(MEMBERS):
        emulated.grant(
            f"{LOCATION}/repositories/{item.inputs['repository']}", item.inputs["role"], item.inputs["member"]
        )
    yield emulated
    emulated.close()


@pytest.fixture(scope="module")
def digest(cloud: Emulated) -> str:
    def send(method: str, where: str, body: bytes, headers: Mapping[str, str]) -> Mapping[str, str]:
        return dict(cloud.request(method, f"{HOST}{where}", body, headers=dict(headers)).headers)

    _, last = (push(send, f"{PROJECT}/{name}/mine", b"a layer") for name in ("granted", "lonely"))
    return last


def settings(*repositories: str) -> Settings:
    return parsed({**BASE, "gcp:project": PROJECT, "storage:repositories": [*repositories]})


def refusals(cloud: Emulated, image: str, *declared: str, who: str = OWNER) -> list[str]:
    google = Client(PROJECT, Session(cloud, who), sleep=lambda _: None)
    return [str(item) for item in problems(google, settings(*declared), image, "--image")]


def test_the_layer_lets_the_hosts_account_pull_from_what_the_settings_name_and_no_other(
    cloud: Emulated, digest: str
) -> None:
    token = cloud.token_of(HOSTS)
    pulls = [
        cloud.request("GET", f"{HOST}/v2/{PROJECT}/{name}/mine/manifests/{digest}", token=token).status
        for name in ("granted", "lonely")
    ]
    assert pulls == [200, 403]
    assert refusals(cloud, f"{GRANTED}/mine:v1@{digest}", GRANTED) == []
    assert refusals(cloud, f"mirror.gcr.io/library/python@{digest}") == [], "anybody may pull it"


@pytest.mark.parametrize(("image", "declared", "message"), [
    (f"{GRANTED}/mine@sha256:{'0' * 64}", (GRANTED,),
     f"Artifact Registry has no such image\n    fix: push it; gcloud artifacts docker images list {GRANTED}"),
    (f"{LONELY}/mine@DIGEST", (),
     f"must be readable by serviceAccount:{HOSTS}, and isn't\n    fix: add {LONELY} to storage:repositories, "
     "then tpu up dev storage"),
    (f"{LONELY}/mine@DIGEST", (LONELY,), f"serviceAccount:{HOSTS}, and isn't\n    fix: tpu up dev storage"),
])  # fmt: skip
def test_what_hosts_cant_pull_is_refused_with_the_next_command(
    image: str, declared: tuple[str, ...], message: str, cloud: Emulated, digest: str
) -> None:
    (refused,) = refusals(cloud, image.replace("DIGEST", digest), *declared)
    assert message in refused


def test_a_login_that_may_not_look_takes_the_settings_word(cloud: Emulated, digest: str) -> None:
    assert refusals(cloud, f"{GRANTED}/mine@{digest}", GRANTED, who=STRANGER) == []
    (refused,) = refusals(cloud, f"{LONELY}/mine@{digest}", GRANTED, who=STRANGER)
    assert (
        f"hosts pull from the repositories of storage:repositories: {GRANTED}\n    fix: add {LONELY}"
        in refused
    )


def test_the_doctor_reports_each_repository(cloud: Emulated) -> None:
    google, none = Client(PROJECT, Session(cloud, OWNER), sleep=lambda _: None), f"{HOST}/{PROJECT}/none"
    reported = [*doctor.check(google, settings(GRANTED, LONELY, none), "images")]
    assert [(item.state, item.detail.partition(": ")[2]) for item in reported] == [
        ("missing", f"must be readable by serviceAccount:{HOSTS}, and isn't"),
        ("missing", "there is no such repository"),
    ]
    assert "gcloud artifacts repositories create none --repository-format=docker" in reported[1].fix
    assert [item.state for item in doctor.check(google, settings(GRANTED), "images")] == ["ok"]


@pytest.mark.parametrize(("name", "present"), [("granted", True), ("none", False)])
def test_an_image_of_jobs_without_a_repository_is_found_by_plan_and_doctor_before_the_pools(
    name: str, present: bool, cloud: Emulated
) -> None:
    image = f"{HOST}/{PROJECT}/{name}/mine@sha256:{'0' * 64}"
    given = parsed({**BASE, **OFF["queue"], "gcp:project": PROJECT, "queue:image": image})
    google = Client(PROJECT, Session(cloud, OWNER), sleep=lambda _: None)
    create = f"gcloud artifacts repositories create {name} --repository-format=docker --location=us-east5"
    check = dict(checks(Target(given, (), google)))["needs queue"]
    assert [(item.state, create in item.fix) for item in check("")] == [
        ("ok", False) if present else ("missing", True)
    ]
    if present:
        plan._require_present(google, given, ["gke", "queue"])
        return
    with pytest.raises(InputError, match="there is no such repository") as refused:
        plan._require_present(google, given, ["gke", "queue"])
    assert create in str(refused.value)
    stranger = Client(PROJECT, Session(cloud, STRANGER), sleep=lambda _: None)
    plan._require_present(stranger, given, ["gke", "queue"])  # who may not look it up

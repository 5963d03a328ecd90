"""Requests that make something: a lost answer neither doubles it nor makes it somebody else's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from fleet.adhoc import AdHoc, Phase
from fleet.google import Google
from infra.core.guard import FIXED, GROWING, RUNS, LivingError, refuse, refuse_change
from infra.errors import CommandError
from infra.google.client import Client, RequestError
from infra.google.failures import Kind
from infra.layers.builds import render, running
from pipeline.runs import Runs
from tests.emulated import PROJECT, Emulated
from tests.infra.layers.builds.test_builds_layer import GIVEN
from tests.infra.layers.pipeline.test_pipeline_layer import settings
from tests.infra.recording import BASE, parsed
from tests.rehearsal.cloud.cloud_front import CloudFront

P = f"projects/{PROJECT}"
STORAGE, RAW, STATE = "storage.googleapis.com/storage/v1/b", "my-project-raw", "my-project-pulumi"
BUILDS = f"cloudbuild.googleapis.com/v1/{P}/builds"


async def succeed(build: dict[str, Any]) -> None:
    build["status"] = "SUCCESS"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    emulated = CloudFront(tmp_path_factory.mktemp("once"))
    emulated.cloud.builder = succeed  # type: ignore[attr-defined]
    for bucket in (RAW, STATE):
        assert emulated.request("POST", f"{STORAGE}?project={PROJECT}", {"name": bucket}).status == 200
    emulated.request("POST", f"iam.googleapis.com/v1/{P}/serviceAccounts", {"accountId": "tpu-builds"})
    yield emulated
    emulated.close()


class Losing(requests.Session):
    """Sends to the emulated cloud as its owner; loses `times` answers to requests that match `lost`."""

    def __init__(self, cloud: Emulated):
        super().__init__()
        self.cloud, self.lost, self.times = cloud, "", 1
        self.meanwhile: dict[str, bytes] = {}  # objects that somebody else writes before an answer is lost

    def request(self, method: Any, url: Any, params: Any = None, data: Any = None, **more: Any) -> Any:
        full = str(requests.Request(method, url, params=params).prepare().url).removeprefix("https://")
        reply = self.cloud.request(method, full, data, headers=dict(more["headers"]))
        if self.lost and self.times and self.lost in f"{method} {full}":
            self.times -= 1
            for name, content in self.meanwhile.items():
                upload = f"storage.googleapis.com/upload/storage/v1/b/{RAW}/o?uploadType=media&name={name}"
                assert self.cloud.request("POST", upload, content).status == 200
            raise requests.ConnectionError("Connection reset by peer")
        answer = requests.Response()
        answer.status_code, answer._content = reply.status, reply.body
        answer.headers.update(dict(reply.headers.items()))
        return answer


@pytest.fixture
def session(cloud: Emulated) -> Losing:
    return Losing(cloud)


@pytest.fixture
def client(session: Losing) -> Client:
    return Client(PROJECT, session, sleep=lambda _: None)


def generation(cloud: Emulated, name: str) -> str:
    return str(cloud.request("GET", f"{STORAGE}/{RAW}/o/{name}").json["generation"])


@pytest.mark.parametrize("times", [0, 1, 2])
def test_an_upload_whose_answer_is_lost_is_one_generation(
    cloud: Emulated, session: Losing, client: Client, times: int
) -> None:
    session.lost, session.times = "POST storage.googleapis.com/upload", times
    first = client.upload(RAW, f"o-{times}", b"one", 0)
    assert str(first) == generation(cloud, f"o-{times}")
    session.times = times
    second = client.upload(RAW, f"o-{times}", b"two", first)
    assert str(second) == generation(cloud, f"o-{times}") != str(first)


@pytest.mark.parametrize("times", [1, 2])
def test_the_record_of_a_fleet_whose_answer_is_lost_is_no_conflict(session: Losing, times: int) -> None:
    session.lost = "POST storage.googleapis.com/upload"
    google = Google(PROJECT, RAW, RAW, session, sleep=lambda _: None)
    records = AdHoc(google, f"stack-{times}")
    for phase in Phase:
        session.times = times
        record = records.keep("mine", {"name": "mine", "owner": {"who": "ann"}}, phase)
        assert (session.times, records.record("mine")) == (0, record)


def test_what_somebody_else_wrote_is_no_upload_of_ours(session: Losing, client: Client) -> None:
    session.lost, session.meanwhile = "POST storage.googleapis.com/upload", {"shared": b"theirs"}
    with pytest.raises(RequestError) as refused:
        client.upload(RAW, "shared", b"ours", 0)
    assert refused.value.failure.kind is Kind.INVALID
    with pytest.raises(RequestError):  # without a lost answer too, whatever its content
        client.upload(RAW, "shared", b"theirs", 0)


@pytest.mark.parametrize("times", [1, 3])
def test_a_run_whose_submission_has_no_answer_is_one_run(
    cloud: Emulated, session: Losing, client: Client, times: int
) -> None:
    session.lost, session.times = "POST storage.googleapis.com/upload", times
    run = Runs(settings(gcp__project=PROJECT), client).submit(f"corpus-{times}/")
    assert session.times == 0, "an answer was lost"
    assert run == f"r{generation(cloud, f'corpus-{times}%2F_SUBMIT')}"
    versions = cloud.request("GET", f"{STORAGE}/{RAW}/o?prefix=corpus-{times}/&versions=true").json["items"]
    assert len(versions) == 1


def test_a_folder_that_somebody_else_submits_at_this_moment_is_theirs(
    session: Losing, client: Client
) -> None:
    session.lost, session.meanwhile = "POST storage.googleapis.com/upload", {"both%2F_SUBMIT": b""}
    with pytest.raises(
        CommandError, match="both/: somebody else has just submitted it\n    fix: tpu pipeline"
    ):
        Runs(settings(gcp__project=PROJECT), client).submit("both/")


@pytest.mark.parametrize("lost", ["POST storage.googleapis.com/upload", f"POST {BUILDS}"])
def test_a_build_whose_answer_is_lost_is_one_build(
    cloud: Emulated, session: Losing, client: Client, tmp_path: Path, lost: str
) -> None:  # fmt: skip
    (tmp_path / "Pulumi.dev.yaml").write_text("config: {}\n")
    values = {**BASE, **GIVEN, "gcp:project": PROJECT}
    known = parsed(values)
    before = {build["id"] for build in cloud.request("GET", BUILDS).json.get("builds", ())}
    session.lost = lost
    started = running.start(known, render.build(known, "destroy"), tmp_path, client, None)
    assert {build["id"] for build in cloud.request("GET", BUILDS).json["builds"]} - before == {started}


def test_what_is_refused_is_requested_once(session: Losing, client: Client) -> None:
    looks: list[None] = []

    def find() -> None:
        looks.append(None)

    with pytest.raises(RequestError, match="steps"):
        client.make(f"https://{BUILDS}", {"steps": "no list"}, find)
    assert looks == []


RECORDS = {"bucket": STATE, "folder": "pipeline"}


def recorded(cloud: Emulated, run: str, content: bytes) -> None:
    """Write the record of a run."""
    url = (
        f"storage.googleapis.com/upload/storage/v1/b/{STATE}/o?uploadType=media&name=pipeline/{run}/run.json"
    )
    assert cloud.request("POST", url, content).status == 200


def test_runs_under_way_stand_against_a_destroy(
    cloud: Emulated, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.google.client.Client", lambda project: client)
    refuse(RUNS, PROJECT, "dev", {**RECORDS, "bucket": f"{STATE}-gone"})
    for run, outcome in (("r1", "running"), ("r2", "trained"), ("r3", "running")):
        recorded(cloud, run, json.dumps({"run": run, "outcome": outcome}).encode())
    with pytest.raises(LivingError, match="in use by 2 runs of the pipeline: r1, r3") as refused:
        refuse(RUNS, PROJECT, "dev", RECORDS)
    assert "fix: tpu pipeline cancel dev RUN, or wait for their end" in str(refused.value)
    for run in ("r1", "r3"):
        recorded(cloud, run, b'{"outcome": "cancelled"}')
    refuse(RUNS, PROJECT, "dev", RECORDS)


def test_the_kind_of_training_isnt_changed_under_a_run_that_trains(
    cloud: Emulated, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function with other settings neither keeps its slice nor ends it."""
    monkeypatch.setattr("infra.google.client.Client", lambda project: client)

    def guard(train: str, **more: str) -> dict[str, Any]:
        labels = {**RECORDS, "folder": "pipeline", **({"train": train} if train else {}), **more}
        return {"what": RUNS, "project": PROJECT, "environment": "dev", "labels": labels}

    for run, outcome, train in (
        ("r4", "running", "fleet"),
        ("r5", "running", ""),
        ("r6", "trained", "fleet"),
    ):
        recorded(cloud, run, json.dumps({"run": run, "outcome": outcome, "train": train}).encode())
    refuse_change(guard("fleet"), guard("fleet", folder="elsewhere"))
    refuse_change(guard("vertex"), guard("fleet"))
    refuse_change(guard(""), guard("none"))  # an older version has made it
    with pytest.raises(
        LivingError, match="r4 train by fleet, and nobody would keep and end what trains"
    ) as refused:
        refuse_change(guard("fleet"), guard("none"))
    assert "fix: pipeline:train: fleet, or tpu pipeline cancel dev RUN, or wait" in str(refused.value)
    for run in ("r4", "r5"):
        recorded(cloud, run, b'{"outcome": "cancelled"}')
    refuse_change(guard("fleet"), guard("none"))


def test_what_can_only_grow_isnt_made_smaller_in_the_plan() -> None:
    def guard(gib: int) -> dict[str, Any]:
        labels = {"slurm:filestoreGib": str(gib)}
        return {"what": GROWING, "environment": "dev", "namespace": "Filestore instance", "labels": labels}

    refuse_change(guard(1024), guard(2048))
    refuse_change(guard(9999), guard(10240))
    with pytest.raises(LivingError) as refused:
        refuse_change(guard(10240), guard(9999))
    assert str(refused.value) == (
        "slurm:filestoreGib: 10240 -> 9999: the Filestore instance can't be made smaller\n"
        "    fix: write slurm:filestoreGib: 10240, or more"
    )
    refuse(GROWING, PROJECT, "dev", {})


def test_what_a_resource_keeps_for_life_is_refused_in_the_plan() -> None:
    def guard(**labels: str) -> dict[str, Any]:
        kept = {"gke:podsRange": "10.0.0.0/20", "gke:servicesRange": "10.1.0.0/20", **labels}
        return {"what": FIXED, "environment": "dev", "namespace": "subnet", "labels": kept}

    refuse_change(guard(), guard())
    with pytest.raises(LivingError) as refused:
        refuse_change(guard(), guard(**{"gke:podsRange": "10.2.0.0/20"}))
    assert str(refused.value) == (
        "gke:podsRange: 10.0.0.0/20 -> 10.2.0.0/20: it can't be changed while the subnet is there\n"
        "    fix: write gke:podsRange: 10.0.0.0/20; or, to have it anew: tpu down dev gke, "
        "then tpu up dev gke"
    )
    refuse(FIXED, PROJECT, "dev", {})  # nothing lives by it: it stands against no destroy


@pytest.mark.parametrize(("labels", "message"), [
    (RECORDS, rf"gs://{STATE}/pipeline/r9/run\.json: is no JSON: .*\n    fix: gcloud storage rm gs://"),
    ({"label": "of before"}, "an older version has made the stack\n    fix: tpu up ENV pipeline; then again"),
])  # fmt: skip
def test_runs_that_are_not_known_stand_against_a_destroy(
    cloud: Emulated, client: Client, monkeypatch: pytest.MonkeyPatch, labels: dict[str, str], message: str
) -> None:
    monkeypatch.setattr("infra.google.client.Client", lambda project: client)
    recorded(cloud, "r9", b"{")
    with pytest.raises(LivingError, match=f"it isn't known whether runs of the pipeline live: {message}"):
        refuse(RUNS, PROJECT, "dev", labels)

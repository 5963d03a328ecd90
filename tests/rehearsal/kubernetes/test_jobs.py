"""`tpu job` on a real Kueue and JobSet, by the rights that a team's people have."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from infra.errors import InfraError
from infra.google.client import Client, RequestError
from infra.google.failures import Kind
from infra.google.kubernetes import Cluster
from infra.layers.queue.jobs.client import COMPLETED, FAILED, QUEUED, RUNNING, STARTING, Jobs
from infra.layers.queue.jobs.jobset import Claim, Job, jobset
from infra.layers.queue.kueue import Team
from infra.layers.queue.ready import wait
from rehearsal.kubernetes.plane.api import documents
from rehearsal.kubernetes.plane.programs import QUEUE, folder, program
from tests.limits import HANG_S
from tests.rehearsal.kubernetes.lab import HOSTS, INSIDE, MACHINE, Lab

VISION, SPEECH = Team("vision", "vision"), Team("speech", "speech")
ADA, BEN = "ada@example.com", "ben@example.com"
WAIT = ["sh", "-c", "trap 'exit 143' TERM; echo ready; sleep 1000 & wait"]


@pytest.fixture(scope="module", name="queue")
def _queue(lab: Lab) -> Lab:
    teams = {VISION: [f"user:{ADA}"], SPEECH: [f"user:{BEN}"]}
    INSIDE.submit(lab.queue, {"jobs-0": {}}, teams).result()
    return lab


@pytest.fixture(autouse=True)
def _empty(queue: Lab) -> Iterator[None]:
    yield

    def clean() -> None:
        for team, who in ((VISION, ADA), (SPEECH, BEN)):
            jobs = as_user(queue, who, team)
            for status in jobs.all():
                jobs.cancel(status.name)
            queue.until(lambda jobs=jobs: not jobs.all(), "an empty queue")  # type: ignore[misc]

    INSIDE.submit(clean).result()


def session(lab: Lab, who: str) -> requests.Session:
    pair = lab.control_plane.authority.client(who.partition("@")[0], who)
    opened = requests.Session()
    opened.trust_env = False
    opened.verify, opened.cert = str(lab.control_plane.authority.ca), (str(pair.certificate), str(pair.key))
    return opened


def as_user(lab: Lab, who: str, team: Team) -> Jobs:
    return Jobs(Cluster(Client("p", session(lab, who)), lab.control_plane.url.removeprefix("https://")), team)


def job(name: str, line: list[str], team: Team = VISION, **more: Any) -> Job:
    return Job(name, team, MACHINE, line, topology="4x4", hosts=HOSTS, chips_per_host=4, **more)


def test_a_job_is_submitted_seen_in_its_place_and_cancelled(queue: Lab) -> None:
    vision, speech = as_user(queue, ADA, VISION), as_user(queue, BEN, SPEECH)
    vision.submit(job("first", WAIT))
    queue.until(lambda: (status := vision.status("first")) and status.state == RUNNING, "the first job")
    speech.submit(job("second", WAIT, SPEECH))
    speech.submit(job("third", WAIT, SPEECH, priority="high"))
    queue.until(lambda: (status := speech.status("third")) and status.state == RUNNING, "preemption")
    queue.until(
        lambda: (status := vision.status("first")) and status.position == 1, "the preempted job's place", 30
    )
    waiting, moved = speech.status("second"), vision.status("first")
    assert waiting is not None
    assert moved is not None
    assert (waiting.state, waiting.position) == (QUEUED, 2)
    assert (moved.state, moved.counted) == (QUEUED, 0)
    assert "waits for 16 more chips of " in moved.why
    assert "cpu" not in moved.why
    assert speech.cancel("third")
    assert speech.cancel("second")
    queue.until(
        lambda: (status := vision.status("first")) and status.state == RUNNING, "the first job again", 60
    )
    assert not vision.cancel("nothing")


def test_how_a_job_ended_is_seen_with_what_it_printed(queue: Lab) -> None:
    vision = as_user(queue, ADA, VISION)
    vision.submit(job("good", ["sh", "-c", "echo 'one …'; echo two $JOB_WORKER"]))
    queue.until(lambda: (status := vision.status("good")) and status.state == COMPLETED, "the good job")
    pod = vision.worker("good", 2)
    assert pod
    lines = list(vision.log(pod))
    assert [text for _, text in lines] == ["one …", "two 2"]
    assert [text for _, text in vision.log(pod, since=lines[0][0])] == ["two 2"]
    vision.submit(job("bad", ["sh", "-c", "exit 3"]))
    queue.until(lambda: (status := vision.status("bad")) and status.state == FAILED, "the bad job")
    ended = vision.status("bad")
    assert ended is not None
    assert (ended.restarts, bool(ended.why)) == (0, True)
    failed = vision.failed("bad")
    assert failed is not None
    assert failed[2] == 3


def test_what_holds_a_jobs_pods_is_named(queue: Lab) -> None:
    vision = as_user(queue, ADA, VISION)
    vision.submit(job("held", WAIT, claims={"/data": Claim("missing")}))
    queue.until(
        lambda: (status := vision.status("held")) and status.state == STARTING and status.why,
        "the reason",
    )
    held = vision.status("held")
    assert held is not None
    assert re.fullmatch(r"held-slice-0-\d-\w+ isn't scheduled: .*\"missing\" not found.*", held.why)


def test_a_team_reaches_neither_another_team_nor_more_than_jobs(queue: Lab) -> None:
    strange = as_user(queue, ADA, SPEECH)
    with pytest.raises(RequestError) as refused:
        strange.submit(job("mine", WAIT, SPEECH))
    assert refused.value.failure.kind is Kind.PERMISSION
    assert 'User "ada@example.com" cannot' in refused.value.failure.message
    with pytest.raises(RequestError, match="cannot list"):
        strange.all()
    cluster = Cluster(Client("p", session(queue, ADA)), queue.control_plane.url.removeprefix("https://"))
    for path in (
        "/api/v1/namespaces/vision/secrets",
        "/api/v1/nodes",
        "/apis/kueue.x-k8s.io/v1beta2/clusterqueues",
    ):
        with pytest.raises(RequestError, match="cannot list"):
            list(cluster.items(path))
    # No pods that pass the queue by, no namespace, no queue, and no quota of its own.
    kueue = "/apis/kueue.x-k8s.io/v1beta2"
    for path, version, kind in (
        ("/api/v1/namespaces/vision/pods", "v1", "Pod"),
        ("/api/v1/namespaces", "v1", "Namespace"),
        (f"{kueue}/namespaces/vision/localqueues", "kueue.x-k8s.io/v1beta2", "LocalQueue"),
        (f"{kueue}/clusterqueues", "kueue.x-k8s.io/v1beta2", "ClusterQueue"),
    ):
        with pytest.raises(RequestError, match="cannot create"):
            cluster.create(path, {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}})
    by_merge = {"Content-Type": "application/merge-patch+json"}
    for path, body in (
        (f"{kueue}/clusterqueues/tpu", {"spec": {"queueingStrategy": "StrictFIFO"}}),
        (f"{kueue}/workloadpriorityclasses/low", {"value": 9999}),
    ):
        url = queue.control_plane.url + path
        answer = session(queue, ADA).patch(url, json.dumps(body), headers=by_merge, timeout=HANG_S)
        assert answer.status_code == 403
        assert "cannot patch" in answer.text


def test_kubectl_alone_applies_sees_and_deletes_what_the_command_writes(queue: Lab, tmp_path: Path) -> None:
    """By the team's Role: `tpu job submit --out`, and from there on without this project."""
    pair = queue.control_plane.authority.client("ada-of-kubectl", ADA)
    queue.control_plane.write_kubeconfig(tmp_path / "kubeconfig", pair)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(jobset(job("by-kubectl", WAIT)), sort_keys=False))

    def kubectl(line: str, status: int = 0) -> str:
        words = [program("kubectl"), "--kubeconfig", tmp_path / "kubeconfig", *line.split()]
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S
        )
        assert done.returncode == status, done.stderr
        return done.stdout or done.stderr

    assert "by-kubectl serverside-applied" in kubectl("apply --server-side -f job.yaml")
    vision = as_user(queue, ADA, VISION)
    queue.until(lambda: (status := vision.status("by-kubectl")) and status.state == RUNNING, "the job")
    # Once more: Kueue has placed it, and the manifest's node selector isn't the manifest's any more.
    assert 'conflict with "kueue"' in kubectl("apply --server-side -f job.yaml", 1)
    shown = kubectl("-n vision get jobsets,workloads")
    assert "jobset.jobset.x-k8s.io/by-kubectl" in shown
    assert "workload.kueue.x-k8s.io/jobset-by-kubectl" in shown
    assert kubectl("-n vision logs -l jobset.sigs.k8s.io/jobset-name=by-kubectl").split() == ["ready"] * HOSTS
    kubectl("-n vision delete jobset by-kubectl")
    # The garbage collector learns new kinds every 30 s.
    queue.until(lambda: not vision.all() and not queue.api.list("v1", "Pod", "vision"), "its pods' end")


def test_a_name_is_taken_once(queue: Lab) -> None:
    vision = as_user(queue, ADA, VISION)
    vision.submit(job("twice", WAIT))
    with pytest.raises(InfraError, match="vision has a job twice already"):
        vision.submit(job("twice", WAIT))


def test_a_namespace_without_the_queue_is_named(queue: Lab) -> None:
    elsewhere = as_user(queue, ADA, Team("vision", "vision", "missing"))
    with pytest.raises(InfraError, match="the namespace vision has no queue missing"):
        elsewhere.submit(job("lost", WAIT))


def test_the_gate_waits_until_the_webhooks_answer(queue: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    admin, pair = requests.Session(), queue.control_plane.admin
    admin.trust_env = False
    admin.verify, admin.cert = str(queue.control_plane.authority.ca), (str(pair.certificate), str(pair.key))
    monkeypatch.setattr("infra.google.client._login", lambda: admin)
    place = queue.control_plane.url.removeprefix("https://")
    assert wait("p", place, 30) < 30
    assert queue.api.get("kueue.x-k8s.io/v1beta2", "ResourceFlavor", "ready-check") is None, "a dry run"
    queue.api.delete(queue.api.place("apps/v1", "Deployment", "jobset-system", "jobset-controller-manager"))
    try:
        queue.until(lambda: not queue.api.list("v1", "Pod", "jobset-system"), "the controller's end")
        with pytest.raises(InfraError, match=r"the cluster took no JobSet within 3 s: .*jobset"):
            wait("p", place, 3)
    finally:
        queue.api.apply_all(documents((folder(QUEUE) / "jobset.yaml").read_text()), "tests")
    assert wait("p", place, 120) > 0

"""Every alert fires exactly once by its fault, is notified on every channel, and by nothing else: 1 min."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from typing import Any
from unittest import mock

import pytest
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

from cli import logs as logs_command
from cli.__main__ import COMMANDS, SUBCOMMANDS
from cli.__main__ import main as cli
from infra.engine.registry import layers
from infra.google.client import Client
from infra.layers.monitoring import alerts, documentation
from rehearsal.cloud.services.monitoring.dashboards import expressions
from rehearsal.cloud.services.tpu.quotas import REVOCABLE
from slurm import logs
from slurm.decide import HELD
from slurm.jobs import Job
from slurm.watch import Watch
from tests.cli.call import call
from tests.infra.lab import BUCKET
from tests.infra.layers.monitoring.watched import (
    PROJECT,
    REGION,
    ZONE,
    Beating,
    P,
    Watched,
    alert_of,
)
from tests.slurm.lab import Nodes, settings
from workload.runs.step_log import StepLog
from workload.runs.store import open_store

ALERTS = alerts.of(layers())
STORAGE = "storage.googleapis.com/storage/v1/b"
# Faults that two alerts are about: opening a bucket changes who may access it, and so on.
TOGETHER = {"bucket-public": {"bucket-access-changed"}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    lab = Watched(tmp_path_factory.mktemp("watched"))
    # As somebody has to do first: the layer's buckets can't be opened to everybody.
    openable = {"iamConfiguration": {"publicAccessPrevention": "inherited"}}
    assert lab.request("PATCH", f"{STORAGE}/wire-test-checkpoints", openable).ok
    yield lab
    assert lab.cloud.world.mistakes == []
    lab.close()


@pytest.fixture
def first(lab: Watched) -> Iterator[int]:
    """Number of the next incident; behind the test all close, without its fault."""
    yield len(lab.cloud.telemetry.incidents)
    lab.quiet()


def boot_failed(lab: Watched, bucket: str = BUCKET) -> None:
    line = "tpu-boot: boot failed in stage bundle; run it again with: systemctl restart x"
    lab.printed("boots", [line], "google-startup-scripts.service", bucket=bucket)


def job_failing(lab: Watched) -> None:
    first, second = Beating(lab, "fails"), Beating(lab, "fails", 1)
    for _ in range(3):  # on two workers: the same failures
        for item in (first, second):
            item.beat("failed", "exit status 1")
        lab.minutes(5)


def run_stalled(lab: Watched) -> None:
    worker = Beating(lab, "stalls")
    worker.report(samples=7, of_samples=100)
    lab.minutes(45, worker.beat)


def checkpoint_old(lab: Watched) -> None:
    worker, steps = Beating(lab, "forgets"), iter(range(1, 10_000))
    worker.saved()

    def minute() -> None:
        worker.report(samples=next(steps))
        worker.beat()

    lab.minutes(135, minute)


def printed_events(lab: Watched, kind: str, count: int) -> None:
    """Events of the trainer, as its step log prints them."""
    out = io.StringIO()
    log = StepLog(open_store(str(lab.folder / "run")), "run", "saves", 10)
    with redirect_stdout(out):
        for _ in range(count):
            log.event(kind, step=3, reason="of the test")
    log.close()
    lab.printed("saves", out.getvalue().splitlines())


def loss_not_finite(lab: Watched) -> None:
    printed_events(lab, "loss-not-finite", 1)


def checkpoint_failed(lab: Watched) -> None:
    printed_events(lab, "save-failed", 2)


def measured(**numbers: float) -> Callable[[Watched], None]:
    def fault(lab: Watched) -> None:
        worker, steps = Beating(lab, "measures"), iter(range(1, 10_000))

        def minute() -> None:
            worker.report(samples=next(steps))
            worker.measure(**numbers)
            worker.beat()

        lab.minutes(75, minute)

    return fault


def chips_idle(lab: Watched) -> None:
    lab.minutes(40, lambda: lab.alive("idles", "v6e-4"))


def spend_high(lab: Watched) -> None:
    lab.minutes(20, lambda: lab.alive("costs", "v6e-256"))


def preemption_storm(lab: Watched) -> None:
    for number in range(4):
        lab.create_node(f"taken-{number}")
    for number in range(4):
        lab.call(lab.cloud.nodes.preempt(f"taken-{number}", False))
    lab.minutes(2)


def creation_refused(lab: Watched) -> None:
    error = {"code": "RESOURCE_EXHAUSTED", "message": "There is no more capacity in the zone"}
    rule = {"match": {"method": "tpu.*.nodes.create"}, "times": 6, "what": {"operation_error": error}}
    lab.cloud.faults.add(rule)
    for number in range(6):
        lab.posted_node(f"refused-{number}")
    lab.minutes(2)


def quota_exceeded(lab: Watched) -> None:
    quotas, name = lab.cloud.quotas, REVOCABLE[1].name
    quotas.set(name, ZONE, 0)
    lab.create_node("too-much", refused=True)
    quotas.set(name, ZONE, 1000)


def granted(bucket: str, member: str) -> Callable[[Watched], None]:
    def fault(lab: Watched) -> None:
        policy = lab.request("GET", f"{STORAGE}/{bucket}/iam").json()
        policy.setdefault("bindings", []).append({"role": "roles/storage.objectViewer", "members": [member]})
        answer = lab.request("PUT", f"{STORAGE}/{bucket}/iam", policy)
        assert answer.ok, answer.text

    return fault


def batch_failed(lab: Watched) -> None:
    payload = {"event": "pipeline_batch", "run": "r17", "batch": "tpu-pipeline-r17-1", "state": "FAILED"}
    of_function(lab, payload, "WARNING")


def written(
    lab: Watched, resource: str, labels: dict[str, str], payload: dict[str, str], severity: str = "ERROR"
) -> None:
    """Write an entry, as a service at Google writes its own."""
    entry = {
        "logName": f"{P}/logs/tested",
        "resource": {"type": resource, "labels": {"project_id": PROJECT, "location": REGION, **labels}},
        "severity": severity,
        "jsonPayload": payload,
    }
    lab.posted("logging.googleapis.com/v2/entries:write", {"entries": [entry]})


def pipeline_failed(lab: Watched) -> None:
    payload = {"event": "pipeline_run", "run": "r17", "stage": "preprocess", "outcome": "quota", "why": ""}
    of_function(lab, payload)


def of_function(lab: Watched, payload: dict[str, str], severity: str = "ERROR") -> None:
    """Write a line of the pipeline's function."""
    name = "tpu-pipeline"
    revision = {"service_name": name, "configuration_name": name, "revision_name": f"{name}-00001"}
    written(lab, "cloud_run_revision", revision, payload, severity)
    lab.minutes(1)


def sweep_failed(lab: Watched) -> None:
    written(lab, "cloud_scheduler_job", {"job_id": "tpu-pipeline"}, {"status": "INTERNAL"})
    lab.minutes(1)


class Partition:
    """A Slurm cluster whose watch reports each minute what it sees."""

    def __init__(self, lab: Watched):
        self._lab, self._lines, self._now_s = lab, list[str](), 0.0
        self.nodes = Nodes(settings())
        self._watch = Watch(settings(), lambda: self._now_s, self._lines.append)

    def minute(self, answers: bool = True) -> None:
        self._now_s += 60.0
        self._watch.look(self.nodes.read() if answers else None)
        self._lab.printed("slurm-dev-controller", self._lines, logs.KEEPER)
        self._lines.clear()


def slurm_queue_stuck(lab: Watched) -> None:
    cluster = Partition(lab)
    cluster.nodes.queue = [Job("7", "ada", "tpu", "CONFIGURING", 4, 1, "0:00", "N/A", "None", "", "a.sh")]
    lab.minutes(75, cluster.minute)


def slurm_nodes_down(lab: Watched) -> None:
    cluster = Partition(lab)
    cluster.nodes.set("tpu-0", "IDLE", "POWERED_DOWN", "DRAIN", reason=f"{HELD}quota: TPUV6E in us-east5-b")
    lab.minutes(25, cluster.minute)


def slurm_controller_silent(lab: Watched) -> None:
    cluster = Partition(lab)
    lab.minutes(5, cluster.minute)
    lab.minutes(12, lambda: cluster.minute(answers=False))


FAULTS: dict[str, Callable[[Watched], None]] = {
    "boot-failed": boot_failed,
    "job-failing": job_failing,
    "run-stalled": run_stalled,
    "checkpoint-old": checkpoint_old,
    "checkpoint-failed": checkpoint_failed,
    "loss-not-finite": loss_not_finite,
    "goodput-low": measured(goodput=0.3),
    "data-stall": measured(goodput=0.6, data_stall=0.35),
    "chips-idle": chips_idle,
    "preemption-storm": preemption_storm,
    "creation-refused": creation_refused,
    "quota-exceeded": quota_exceeded,
    "spend-high": spend_high,
    "bucket-public": granted("wire-test-checkpoints", "allUsers"),
    "bucket-access-changed": granted("wire-test-checkpoints-steps", "user:ada@example.com"),
    "batch-failed": batch_failed,
    "pipeline-failed": pipeline_failed,
    "slurm-queue-stuck": slurm_queue_stuck,
    "slurm-nodes-down": slurm_nodes_down,
    "slurm-controller-silent": slurm_controller_silent,
}


def test_each_alert_has_a_fault() -> None:
    assert sorted(FAULTS) == sorted(ALERTS)


@pytest.mark.slow
@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_fires_once_by_its_fault_and_closes_again(lab: Watched, first: int, alert: str) -> None:
    sent = len(lab.cloud.telemetry.sent)
    FAULTS[alert](lab)
    lab.minutes(1)
    assert lab.fired(first) == Counter({alert, *TOGETHER.get(alert, ())})
    opened = [item for item in lab.cloud.telemetry.sent[sent:] if item.message["incident"]["state"] == "open"]
    (own,) = (incident for incident in lab.cloud.telemetry.incidents[first:] if alert_of(incident) == alert)
    about = [item for item in opened if item.message["incident"]["incident_id"] == own.id]
    assert [(item.kind, item.to, item.failed) for item in about] == [
        ("email", "oncall@example.com", ""),
        ("pubsub", f"{P}/topics/tpu-alerts", ""),
        ("webhook_tokenauth", "https://hooks.example.com/tpu", ""),
    ]
    content = about[0].message["incident"]["documentation"]["content"]
    assert content.startswith(f"# {alert}\n")
    assert "ENV" not in content


@pytest.mark.slow
def test_hosts_of_another_environment_of_the_project_fire_nothing(lab: Watched, first: int) -> None:
    boot_failed(lab, "another-checkpoints")
    lab.minutes(1)
    assert lab.fired(first) == Counter()
    boot_failed(lab, "")
    lab.minutes(1)
    assert lab.fired(first) == Counter({"boot-failed": 1}), "of a bundle that tells no bucket yet"


@pytest.mark.slow
def test_a_second_sweep_that_fails_opens_an_incident(lab: Watched, first: int) -> None:
    sweep_failed(lab)
    lab.minutes(2)
    assert lab.fired(first) == Counter(), "the next sweep does the same"
    sweep_failed(lab)
    lab.minutes(2)
    assert lab.fired(first) == Counter({"pipeline-failed": 1})


@pytest.mark.slow
def test_a_controller_that_is_gone_opens_an_incident_and_one_that_comes_back_in_time_none(
    lab: Watched, first: int
) -> None:
    cluster = Partition(lab)
    for _ in range(2):
        lab.minutes(3, cluster.minute)
        lab.minutes(8)
    assert lab.fired(first) == Counter()
    lab.minutes(4)
    assert lab.fired(first) == Counter({"slurm-controller-silent": 1})


@pytest.mark.slow
def test_a_failure_that_all_workers_see_counts_once(lab: Watched, first: int) -> None:
    for item in [Beating(lab, "together", worker) for worker in range(4)]:
        for _ in range(2):
            item.beat("failed", "exit status 1")
    lab.minutes(2)
    assert lab.fired(first) == Counter()


@pytest.mark.slow
def test_a_job_in_health_fires_nothing(lab: Watched, first: int) -> None:
    workers, steps = [Beating(lab, "healthy", worker) for worker in (0, 1)], iter(range(1, 10_000))

    def minute() -> None:
        step = next(steps)
        lab.alive("healthy", "v6e-16")
        for worker in workers:
            worker.report(samples=step)
            worker.measure(goodput=0.9, data_stall=0.01, loss=2.5, step_s=60.0, duty_cycle_percent=80.0)
            if step % 30 == 0:
                worker.saved()
            worker.beat()

    lab.minutes(180, minute)
    assert lab.fired(first) == Counter()
    chips = "logging_googleapis_com:user_tpu_dev_chips_sum"
    seen = lab.cloud.telemetry.query(f'sum (increase({chips}{{monitored_resource="generic_node"}}[10m]))')
    assert seen == {(): 160.0}, "it was watched"


@pytest.mark.slow
def test_idle_chips_of_a_running_job_are_opened_by_their_duty_cycle(lab: Watched, first: int) -> None:
    worker, steps = Beating(lab, "spins"), iter(range(1, 10_000))

    def minute() -> None:
        lab.alive("spins", "v6e-4")
        worker.report(samples=next(steps))
        worker.measure(goodput=0.9, duty_cycle_percent=1.0)
        worker.beat()

    lab.minutes(75, minute)
    assert lab.fired(first) == Counter({"chips-idle": 1})


@pytest.mark.slow
def test_incidents_are_published_and_listed(lab: Watched, first: int) -> None:
    boot_failed(lab)
    lab.minutes(1)
    pulled = lab.posted(f"pubsub.googleapis.com/v1/{P}/subscriptions/watched:pull", {"maxMessages": 1000})
    messages = [json.loads(base64.b64decode(item["message"]["data"])) for item in pulled["receivedMessages"]]
    newest = messages[-1]["incident"]
    assert (newest["policy_name"], newest["state"]) == ("tpu dev: boot-failed", "open")
    assert newest["metric"]["labels"] == {"node": "boots"}
    listed = lab.request("GET", f"monitoring.googleapis.com/v3/{P}/alerts").json()["alerts"]
    assert len(listed) == first + 1
    assert (listed[0]["state"], listed[0]["policy"]["displayName"]) == ("OPEN", "tpu dev: boot-failed")


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_the_dashboards_queries_have_what_was_seen(lab: Watched) -> None:
    worker, steps = Beating(lab, "drawn"), iter(range(1, 10_000))

    def minute() -> None:
        lab.alive("drawn", "v6e-16")
        worker.report(samples=next(steps))
        worker.measure(loss=2.5, goodput=0.9)
        worker.beat()

    lab.minutes(30, minute)
    made = [body for name, body in lab.cloud.world.directory.items() if "/dashboards/" in name]
    boards = {body["displayName"]: body for body in made}
    assert sorted(boards) == ["TPU dev: fleet", "TPU dev: pipeline and cost", "TPU dev: run"]
    widgets = [tile["widget"] for body in boards.values() for tile in body["mosaicLayout"]["tiles"]]
    values = {
        widget.get("title"): [sum(lab.cloud.telemetry.query(text).values()) for text in expressions(widget)]
        for widget in widgets
    }
    assert values["Chips that are up"] == [16]
    assert values["Dollars an hour, by the catalog"] == [pytest.approx(22.45, abs=0.01)]
    assert values["Loss"] == [2.5]


@pytest.mark.slow
def test_a_condition_that_cannot_be_evaluated_is_a_mistake(lab: Watched) -> None:
    """And not false: it fails a rehearsal."""
    query = {"query": "rate(x[5m]) > 1", "duration": "0s", "disableMetricValidation": True}
    body = {
        "displayName": "strange",
        "combiner": "OR",
        "conditions": [{"displayName": "strange", "conditionPrometheusQueryLanguage": query}],
    }
    made = lab.posted(f"monitoring.googleapis.com/v3/{P}/alertPolicies", body)
    lab.minutes(2)
    mistakes = list(lab.cloud.world.mistakes)
    lab.cloud.world.mistakes.clear()
    assert lab.request("DELETE", f"monitoring.googleapis.com/v3/{made['name']}").ok
    assert mistakes == ["the condition 'strange': PromQL's function rate is not emulated."]


FIRST = re.compile(r"## First command\n\n    (.+)\n")


@pytest.mark.parametrize("alert", [*ALERTS])
def test_the_first_command_of_a_runbook_is_one(alert: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of `tpu`: its own parser takes it. Of gcloud: it reads, and names the project."""
    result = FIRST.search(documentation.page(alert))
    assert result
    line = result[1].replace("ENV", "dev").replace("PROJECT", PROJECT).replace("REGION", REGION)
    program, *words = shlex.split(line)
    if program == "gcloud":
        assert words[2:3] in (["list"], ["read"]) or words[1] in ("list", "read")
        assert f"--project={PROJECT}" in words
        return
    assert program == "tpu"
    assert words[0] in {**COMMANDS, **SUBCOMMANDS}
    assert cli([*words, "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: tpu ")


@pytest.mark.parametrize("alert", [*ALERTS])
def test_every_command_of_a_runbook_is_taken_as_it_stands(
    alert: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With all its arguments: what each then reports is that there is no such environment."""
    lines = re.findall(r"(?:^    |`)(tpu [^`\n]*\bENV\b[^`\n]*)", documentation.page(alert), re.MULTILINE)
    for line in lines:
        words = shlex.split(line.replace("ENV", "nowhere").replace("--worker N", "--worker 0"))
        try:
            status = cli(words[1:])
        except SystemExit as ended:
            status = int(ended.code or 0)
        shown = capsys.readouterr().err
        assert status, line
        assert "Pulumi.nowhere.yaml" in shown, f"{line}: {shown}"


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_the_first_command_finds_the_line_of_the_fault(
    lab: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tpu logs` of the runbooks, by its own code, on the entries of the faults."""
    boot_failed(lab)
    printed_events(lab, "save-failed", 1)
    slurm_nodes_down(lab)
    session = Session()
    session.headers["Authorization"] = f"Bearer {lab.environment['GOOGLE_OAUTH_ACCESS_TOKEN']}"
    session.mount("https://logging.googleapis.com", ToLab(lab.urls["logging.googleapis.com"]))
    for alert, line in (
        ("boot-failed", "boot failed in stage bundle"),
        ("checkpoint-failed", "save-failed"),
        ("slurm-nodes-down", "slice: quota: TPUV6E in us-east5-b"),
    ):
        result = FIRST.search(documentation.page(alert))
        assert result
        words = [word for word in shlex.split(result[1].replace("ENV", "dev"))[2:] if not word.endswith("h")]
        words = [word for word in words if word != "--since"]  # virtual time is ahead of this machine's
        with mock.patch.object(logs_command, "Client", lambda project: Client(project, session)):
            assert call(logs_command.logs, words, lab.root) == 0
        assert line in capsys.readouterr().out


class ToLab(HTTPAdapter):
    """Requests to Google go to the lab."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def send(self, request: PreparedRequest, *arguments: Any, **named: Any) -> Response:  # type: ignore[override]
        assert request.url
        request.url = request.url.replace("https://logging.googleapis.com", self._url)
        return super().send(request, *arguments, **named)

"""The runner without a world: what fails a scenario, what is recorded, and what the seed draws."""

from __future__ import annotations

import json
import random
import re
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.api_core.exceptions import ServiceUnavailable
from rich.console import Console

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import building, killing, steps, watching
from rehearsal.scenario.bucket import Bucket, ObjectFacts
from rehearsal.scenario.record import Price, Record
from rehearsal.scenario.report import write_report
from rehearsal.scenario.runner import Runner
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.shell import Shell
from rehearsal.scenario.step import Step
from rehearsal.world.console import Narrator
from rehearsal.world.layout import Layout
from tests.virtual_time import replace_time


class FakeControl:
    """The control socket's client, answering from memory."""

    def __init__(self) -> None:
        self.refused = 0
        self.mistakes: list[str] = []
        self.rules: list[dict[str, Any]] = []
        self.preempted: list[tuple[str, bool]] = []
        self.state = "READY"

    def access(self) -> dict[str, Any]:
        return {"served": ["storage.objects.get", "storage.objects.list"], "asked": []}

    def status(self) -> dict[str, Any]:
        hosts = [{"name": f"tpu-dev-w{k}", "running": self.state == "READY"} for k in range(2)]
        methods = {"storage.objects.get": {"validated": 7, "refused": self.refused}}
        return {
            "nodes": [{"name": "tpu-dev", "state": self.state, "hosts": hosts}],
            "instances": [],
            "requests": {"validated": 7, "refused": self.refused, "methods": methods},
            "mistakes": self.mistakes,
        }

    def add_fault(self, rule: dict[str, Any]) -> str:
        self.rules.append({"id": f"fault-{len(self.rules)}", "observed": 0, **rule})
        return str(self.rules[-1]["id"])

    def faults(self) -> list[dict[str, Any]]:
        return self.rules

    def preempt(self, node: str, *, notice: bool) -> None:
        self.preempted.append((node, notice))
        self.state = "PREEMPTED"


class FakeBucket:
    """The bucket, with objects from memory."""

    name = "bucket"

    def __init__(self) -> None:
        self.objects: dict[str, ObjectFacts] = {}
        self.losses_of: dict[str, list[tuple[int, float, str]]] = {}
        self.finals: dict[str, dict[str, Any]] = {}
        self.boot_statuses: list[dict[str, Any]] = []
        self.state = "running"
        self.step = 0

    def facts(self, prefix: str) -> dict[str, ObjectFacts]:
        return {name: facts for name, facts in self.objects.items() if name.startswith(prefix)}

    def names(self, prefix: str) -> list[str]:
        return sorted(self.facts(prefix))

    def boots(self, node: str) -> list[dict[str, Any]]:
        return self.boot_statuses

    def status(self, run: str) -> dict[str, Any]:
        self.step += 1
        now = datetime.now(UTC).isoformat()
        return {"state": self.state, "step": self.step, "steps": 100, "updated": now}

    def losses(self, run: str) -> list[tuple[int, float, str]]:
        return self.losses_of[run]

    def events(self, run: str) -> list[dict[str, Any]]:
        return [{"kind": "restore", "step": 30, "time": "2026-01-01T00:00:00Z"}]

    def final(self, run: str) -> dict[str, Any] | None:
        return self.finals.get(run)


def make_runner(tmp_path: Path, *listed: Step, seed: int = 1) -> tuple[Runner, FakeControl, FakeBucket]:
    scenario = Scenario(
        steps=listed or (steps.survived(),), seed=seed, path=tmp_path / "test.py", title="a test"
    )
    quiet = Narrator(Console(quiet=True))
    layout = Layout(tmp_path)
    layout.program.mkdir(exist_ok=True)
    runner = Runner(scenario, layout, tmp_path / "report", quiet)
    control, bucket = FakeControl(), FakeBucket()
    runner.scene.control = control  # type: ignore[assignment]
    runner.scene.__dict__["bucket"] = bucket
    return runner, control, bucket


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return make_runner(tmp_path)[0].scene


FAULT = steps.fault("storage stumbles", {"status": 503})


def failure(runner: Runner) -> str:
    """The reason of a scenario that fails."""
    record = runner.act()
    assert record.verdict == "failed"
    return record.reason


def test_a_scenario_that_passes(tmp_path: Path) -> None:
    runner, _, _ = make_runner(tmp_path, steps.command("echo hello", prints="hel+o"))
    record = runner.act()
    assert (record.verdict, record.reason) == ("passed", "")
    assert [step.outcome for step in record.steps] == ["ok"]
    assert Record.load(tmp_path / "report" / "record.json") == record


def test_a_failing_step_ends_the_scenario_with_its_reason(tmp_path: Path) -> None:
    never = steps.command("touch never")
    runner, _, _ = make_runner(tmp_path, steps.command("echo no such disk; exit 3"), never)
    assert re.search("(?s)exit status 3.*no such disk", failure(runner))
    assert not list(tmp_path.rglob("never"))
    assert [step.outcome for step in runner.record.steps] == ["failed"]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (steps.command("true", fails=True), "should have been refused, but succeeded"),
        (steps.command("echo yes", prints="^no"), "printed nothing that matches"),
        (steps.command("echo other; false", fails=True, prints="capacity"), "printed nothing that matches"),
        (steps.command("sleep 20", timeout_s=0.2), "not done within"),
        (FAULT, "never observed: storage stumbles"),
    ],
)
def test_a_step_that_shows_something_else_fails(tmp_path: Path, step: Step, reason: str) -> None:
    assert reason in failure(make_runner(tmp_path, step)[0])


def test_the_page_of_each_run_is_beside_the_report(tmp_path: Path) -> None:
    runner, _, bucket = make_runner(tmp_path, steps.command("true"))
    bucket.objects = dict.fromkeys(
        ("runs/first/config.json", "runs/first/status.json", "runs/other/checkpoints/1"),
        ObjectFacts(1, 2, "x"),
    )
    bucket.losses_of = {"first": [(1, 2.0, "0x1p1")], "other": []}
    command = runner._layout.program / "cli.py"
    command.write_text("import sys, pathlib\npathlib.Path(sys.argv[-1]).parent.mkdir()\n"
                       "pathlib.Path(sys.argv[-1]).write_text(' '.join(sys.argv[1:-1]))\n")  # fmt: skip
    record = runner.act()
    assert record.verdict == "passed"
    assert {run.name: run.page for run in record.runs} == {"first": "runs/first.html", "other": ""}
    page = (tmp_path / "report/runs/first.html").read_text()
    assert page == f"runs show {runner.scene.environment} first --no-open --out"
    assert re.findall(
        '<a href="([^"]+)">first</a>', write_report(record, tmp_path / "report").read_text()
    ) == ["runs/first.html"]


@pytest.mark.parametrize(("command", "kept"), [("false", ["a-slice-0-0.11.worker.log"]), ("true", [])])
def test_what_pods_printed_outlives_the_world_of_a_scenario_that_failed(
    tmp_path: Path, command: str, kept: list[str]
) -> None:
    pod = Layout(tmp_path).clusters / "tpu-1/agent/pods/11"
    pod.mkdir(parents=True)
    (pod / "hosts").write_text("127.0.0.1 localhost\n172.20.1.2 a-slice-0-0\n")
    (pod / "worker.log").write_text("2026-11-26T21:09:36Z denied\n")
    make_runner(tmp_path, steps.command(command))[0].act()
    copies = sorted((tmp_path / "report/logs").glob("pods/*"))
    assert [path.name for path in copies] == kept
    assert all("denied" in path.read_text() for path in copies)


def test_an_observed_fault_is_counted(tmp_path: Path) -> None:
    runner, control, _ = make_runner(tmp_path, FAULT)
    control.faults = lambda: [{**rule, "observed": 2} for rule in control.rules]  # type: ignore[method-assign]
    record = runner.act()
    assert record.verdict == "passed"
    assert record.faults == [{"id": "fault-0", "name": "storage stumbles", "observed": 2}]


def test_a_refused_request_fails_the_scenario(tmp_path: Path) -> None:
    runner, control, _ = make_runner(tmp_path, steps.command("true"))
    control.refused = 2
    assert "storage.objects.get (2)" in failure(runner)


@pytest.mark.parametrize("command", ["true", "false"])
def test_an_error_of_the_emulation_fails_the_scenario_beside_its_effects(
    tmp_path: Path, command: str
) -> None:
    runner, control, _ = make_runner(tmp_path, steps.command(command))
    control.mistakes.append("in the background: boom")
    assert failure(runner).endswith("\na mistake of the emulation's own: in the background: boom")


def boot(worker: int | None, boot_id: str, state: str = "ready") -> dict[str, Any]:
    start = datetime.now(UTC).isoformat()
    stage = {"name": "locks", "state": "failed" if state == "failed" else "ok", "attempt": 1, "start": start,
             "end": start, "log_tail": "dpkg is locked"}  # fmt: skip
    return {"node": "tpu-dev", "worker": worker, "boot_id": boot_id, "state": state, "stage": "locks",
            "stages": [stage]}  # fmt: skip


def test_ready_counts_only_new_boots(scene: Scene) -> None:
    bucket: Any = scene.bucket
    bucket.boot_statuses = [boot(0, "a"), boot(1, "b")]
    watching.ready("tpu-dev", timeout_s=1).act(scene)
    with pytest.raises(ScenarioFailed, match="0 of 2 ready"):
        watching.ready("tpu-dev", timeout_s=0.1).act(scene)
    bucket.boot_statuses = [boot(0, "c"), boot(1, "d")]
    watching.ready("tpu-dev", timeout_s=1).act(scene)
    assert len(scene.boots) == 4
    # The script once more in the same boots, as after a change of what a living slice runs.
    bucket.boot_statuses = [boot(0, "c"), boot(1, "d")]
    watching.ready("tpu-dev", timeout_s=1).act(scene)
    assert len(scene.boots) == 6


def test_a_failed_boot_is_named_at_once(scene: Scene) -> None:
    bucket: Any = scene.bucket
    bucket.boot_statuses = [boot(0, "a"), boot(1, "b", "failed")]
    with pytest.raises(
        ScenarioFailed, match=r"worker 1 of tpu-dev failed in stage locks:\n    dpkg is locked"
    ):
        watching.ready("tpu-dev", timeout_s=3600).act(scene)


def test_a_host_without_a_number_is_named_too(scene: Scene) -> None:
    statuses = [boot(1, "a", "booting"), boot(None, "b", "failed")]
    contents = {f"boot/tpu-dev/worker-{status['worker']}.json": status for status in statuses}
    bucket = Bucket.__new__(Bucket)
    bucket.names = lambda prefix: sorted(contents)  # type: ignore[method-assign]
    bucket.json = lambda name: contents[name]  # type: ignore[method-assign]
    scene.__dict__["bucket"] = bucket
    with pytest.raises(ScenarioFailed, match=r"a host without a number of tpu-dev failed in stage locks"):
        watching.ready("tpu-dev", timeout_s=1).act(scene)


@pytest.mark.parametrize(
    ("losses", "final", "reason"),
    [
        ({}, {}, ""),
        ({1: "0x1.0000000000001p+2"}, {}, "1 losses differ, the first at step 1"),
        ({}, {"params_sums_sha256": "ac" + "ab" * 31}, "ended as"),
        ({2: None}, {}, "the first at step 2"),
        ({}, None, r"other has no final\.json"),
    ],
    ids=["the same", "one bit of a loss", "one bit of the parameters", "a step without a loss", "not done"],
)
def test_two_runs_are_the_same_to_the_last_bit(
    scene: Scene, losses: dict[int, str | None], final: dict[str, str] | None, reason: str
) -> None:
    bucket: Any = scene.bucket
    first: dict[int, str | None] = {1: "0x1p+2", 2: "0x1p+1"}
    ended = {
        "step": 2,
        "loss_hex": "0x1p+1",
        "params_sums_sha256": "ab" * 32,
        "opt_state_sums_sha256": "cd" * 32,
    }
    bucket.losses_of = {
        run: [(step, float.fromhex(loss), loss) for step, loss in values.items() if loss]
        for run, values in (("one", first), ("other", first | losses))
    }
    bucket.finals = {"one": ended} | ({} if final is None else {"other": ended | final})
    with pytest.raises(ScenarioFailed, match=reason) if reason else nullcontext():
        steps.same("one", "other").act(scene)
    assert bool(reason) or "2 losses" in scene.record.checks[0].evidence


def test_extractions_are_alike_when_their_shards_are_the_same(scene: Scene) -> None:
    bucket: Any = scene.bucket
    first, second = (f"extractions/{run}/activations/tpu_0/" for run in ("one", "other"))
    bucket.objects = {f"{folder}a": ObjectFacts(n, 10, "x") for n, folder in enumerate((first, second))}
    steps.alike("one", "other").act(scene)
    assert scene.record.checks[0].claim == "other left what one did"
    for name, facts in (("b", ObjectFacts(3, 10, "y")), ("a", ObjectFacts(3, 10, "y"))):
        bucket.objects[f"{second}{name}"] = facts
        with pytest.raises(ScenarioFailed, match=f"shards differ, the first tpu_0/{name}"):
            steps.alike("one", "other").act(scene)


def test_what_was_noted_must_survive(scene: Scene) -> None:
    bucket: Any = scene.bucket
    bucket.objects = {"runs/a": ObjectFacts(1, 10, "x"), "runs/b": ObjectFacts(1, 10, "y")}
    watching.remember("runs/").act(scene)
    watching.survived().act(scene)
    bucket.objects["runs/b"] = ObjectFacts(2, 10, "y")
    with pytest.raises(ScenarioFailed, match="1 of 2 objects are gone or changed: runs/b"):
        watching.survived().act(scene)


def test_nothing_noted_proves_nothing(scene: Scene) -> None:
    with pytest.raises(ScenarioFailed, match="nothing was noted"):
        watching.survived().act(scene)
    with pytest.raises(ScenarioFailed, match="nothing below"):
        watching.remember("runs/").act(scene)


@pytest.mark.parametrize("command", ["true", "false"])
def test_boots_of_nodes_that_a_controller_recreated_are_in_the_record(tmp_path: Path, command: str) -> None:
    runner, _, bucket = make_runner(
        tmp_path, steps.preempt("tpu-dev", "power-loss", "one"), steps.command(command)
    )
    runner.scene.control.status = lambda: {**off, "requests": {}, "mistakes": []}  # type: ignore[method-assign]
    off = {"nodes": [{"name": "tpu-dev", "state": "PREEMPTED", "hosts": []}], "instances": []}
    bucket.boot_statuses = [boot(0, "after")]
    record = runner.act()
    assert [item.boot_id for item in record.boots] == ["after"]
    assert (record.kills[0].how, record.kills[0].shards) == ("power-loss", 0)


def test_resumed_from_far_enough(scene: Scene) -> None:
    watching.resumed("one", 30).act(scene)
    with pytest.raises(ScenarioFailed, match="expected 31 or later"):
        watching.resumed("one", 31).act(scene)


KILL = steps.kill("tpu-dev", "power-loss", "one", (2, 9), jitter_s=0.01)


def struck_at(tmp_path: Path, seed: int) -> int:
    runner, control, _ = make_runner(tmp_path, seed=seed)
    KILL.act(runner.scene)
    assert control.preempted == [("tpu-dev", False)]
    return runner.record.kills[0].step


def test_moments_come_from_the_seed(tmp_path: Path) -> None:
    steps_by_seed = {seed: struck_at(tmp_path, seed) for seed in range(3)}
    assert steps_by_seed == {seed: struck_at(tmp_path, seed) for seed in range(3)}
    assert len(set(steps_by_seed.values())) > 1
    drawn = {seed: random.Random(seed).randint(2, 9) for seed in range(3)}
    assert all(steps_by_seed[seed] >= drawn[seed] for seed in drawn)


def test_a_crash_kills_the_job_of_one_worker_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    killed: list[list[str]] = []
    replace_time(monkeypatch, "sleep", pauses.append)
    for seed in range(6):
        scene = make_runner(tmp_path, seed=seed)[0].scene
        monkeypatch.setattr(scene.shell, "ssh", lambda hosts, line, **_: killed.append(hosts))
        steps.kill("tpu-dev", "crash", "one", (2, 2), jitter_s=9).act(scene)
        assert killed[-1] == [f"tpu-dev-w{scene.record.kills[0].worker}"]
        assert f"then {pauses[-1]:.1f} s" in scene.note.text
    assert {*map(tuple, killed)} == {("tpu-dev-w0",), ("tpu-dev-w1",)}
    assert all(0 < pause < 9 for pause in pauses)


def test_a_run_that_is_done_cannot_be_killed(scene: Scene) -> None:
    bucket: Any = scene.bucket
    bucket.state = "done"
    with pytest.raises(ScenarioFailed, match="was done before it could be killed"):
        KILL.act(scene)


def test_a_run_that_ends_while_a_kill_waits_for_its_moment_proves_nothing(scene: Scene) -> None:
    bucket: Any = scene.bucket
    running = bucket.status
    # Asked twice for the step before the pause, once after it.
    bucket.status = lambda run: {**running(run), "state": "done" if bucket.step > 3 else "running"}
    with pytest.raises(ScenarioFailed, match="was done before it could be killed at step 2"):
        killing.kill("tpu-dev", "power-loss", "one", (2, 2), jitter_s=0.01).act(scene)
    assert not cast(Any, scene.control).preempted


def test_the_shell_keeps_what_commands_print(tmp_path: Path) -> None:
    shell = Shell(tmp_path, tmp_path / "logs")
    assert shell.run(["bash", "-c", "echo out; echo err >&2"]) == "out\nerr\n"
    logs = list((tmp_path / "logs").iterdir())
    assert [log.read_text() for log in logs] == ["out\nerr\n"]


def test_a_record_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"scenario": "a"}))
    with pytest.raises(Exception, match=r"missing .*title"):
        Record.load(path)


def test_a_bucket_that_does_not_answer_fails_the_scenario_with_a_sentence(tmp_path: Path) -> None:
    runner, _, bucket = make_runner(tmp_path, steps.resumed("one", 1))

    def unavailable(run: str) -> list[dict[str, Any]]:
        raise ServiceUnavailable("try again")

    bucket.events = unavailable  # type: ignore[method-assign]
    assert "Cloud Storage can't be read: 503 try again" in failure(runner)


def test_every_member_of_a_fleet_has_a_price() -> None:
    row = {"nodes": ["a", "b"], "hourly": 20.0, "chips": 32, "paid": "spot"}
    unknown = {"nodes": ["c"], "hourly": None, "chips": 8, "paid": "reserved"}
    output = json.dumps({"read": "2026-01-02", "rows": [row, unknown]})
    scene = SimpleNamespace(environment="dev", shell=SimpleNamespace(run=lambda command: output))
    assert building.prices(cast(Scene, scene)) == [
        Price("a", 10.0, 16, True, "2026-01-02"),
        Price("b", 10.0, 16, True, "2026-01-02"),
    ]

"""Two people, monitors and a pipeline on one environment, in any order, with every fault at every request.

The programs are the real ones, from `tpu run` down to the requests; cloud and clock are virtual.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from functools import lru_cache, partial
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, seed
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from cli import run as run_command
from fleet import environment, monitor, owned, removal, supervise, zones
from fleet.adhoc import STOP_WHEN_DONE, Phase
from fleet.controller import Controller
from fleet.errors import FleetError
from fleet.observation import Observation
from fleet.owned import OwnedFleets
from fleet.request import FleetCommand
from fleet.supervise import Supervisor
from infra.engine.named import StackState
from infra.layers.tpu import startup
from infra.prices.run import RunPrice
from infra.settings.schema import Settings
from pipeline.decide import Progress
from pipeline.record import Run
from pipeline.slices import SliceTrainer
from pipeline.training import TrainingError
from tests.fleet.actors import Actor, Machine, SharedCloud, acting, virtual_time
from tests.fleet.conftest import OWNER
from tests.fleet.world import settings

ZONE, MOST_ACTORS = "us-east5-b", 5
BASE = {
    "name": "base", "acceleratorType": "v6e-8", "zones": [ZONE], "count": 1, "spot": True,
    "run": "extract qwen2.5-0.5b.toml --stream gs://b/x",
}  # fmt: skip
STACK = StackState(OWNER.stack, {})
NAMES = ("mine", "r17")
PROGRAMS = ("ab", "cd", "ef")
EVENTS = (
    "preempted", "preempted", "done", "done", "final", "forged done", "forged final", "labels taken",
    "made anew bare", "made anew with its labels",
)  # fmt: skip
SPENT: Counter[str] = Counter()


@lru_cache
def _settings(slices: str) -> Settings:
    return settings(json.loads(slices))


def _from_file(_: str, root: object = None, slices: Any = ()) -> Settings:
    return _settings(json.dumps([BASE, *slices], sort_keys=True))


class _Inline:
    """An executor whose requests are sent by who submits them."""

    def __init__(self, *_: object) -> None: ...

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


class _NoDashboard(nullcontext[Any]):
    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(self)

    def show(self, _: Observation) -> None: ...


def _item(name: str, program: str, stops: bool) -> dict[str, Any]:
    item = {
        "name": name, "acceleratorType": "v6e-8", "zones": [ZONE], "count": 1, "spot": True,
        "run": "python train.py", "bundle": program * 32, "checkpointFolder": f"jobs/{name}",
    }  # fmt: skip
    return item | ({STOP_WHEN_DONE: True} if stops else {})


@contextmanager
def _replaced(cloud: SharedCloud) -> Iterator[None]:
    """Give the programs this cloud, and nothing of this machine."""

    def reboot(request: FleetCommand, *_: object) -> int:
        acting().request()
        for node in cloud.nodes.values():
            if node.state == "READY" and node.labels.get("fleet") == request.slices[0]:
                node.program, node.work, node.heartbeat = node.labels["bundle"], "running", ""
                node.heartbeat_s = 0.0
        return 0

    class Entries:
        def since(self, _: str) -> list[dict[str, str]]:
            return []

    store = partial(environment.BucketStore, now=lambda: cloud.now_s)
    replacements: list[tuple[Any, str, Any]] = [
        *((module, "from_file", _from_file) for module in (environment, supervise, owned)),
        *((module, "google_of", lambda _: cloud) for module in (environment, supervise)),
        *((module, "read_stack", lambda _: STACK) for module in (environment, supervise)),
        (environment, "BucketStore", store), (zones, "ThreadPoolExecutor", _Inline),
        (monitor, "Dashboard", _NoDashboard), (run_command, "_entries", lambda *_: Entries()),
        (run_command, "_POLL_S", 10.0), (run_command.hosts, "execute", reboot),
        (run_command.hosts, "restart", reboot),
        (startup, "loader", lru_cache(startup.loader)),  # a file, read for each body of a request
        # Python 3.11 locks a cached property across instances, and an actor stops within.
        (Supervisor, "_controller", property(_own_controller)),
    ]  # fmt: skip
    with ExitStack() as stack:
        for module, name, value in replacements:
            stack.enter_context(mock.patch.object(module, name, value))
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        stack.enter_context(virtual_time(cloud))
        yield


def _own_controller(supervisor: Supervisor) -> Controller:
    if not hasattr(supervisor, "kept_controller"):
        supervisor.kept_controller = supervisor.fleet.controller()  # type: ignore[attr-defined]
    return supervisor.kept_controller  # type: ignore[attr-defined,no-any-return]


# What the actors do


def _run(name: str, program: str, stops: bool, replace: bool) -> int:
    """`tpu run`, once its bundle is published."""
    supervisor = Supervisor("dev", _item(name, program, stops), lambda _: None)
    supervisor.require_free(replace)
    job = run_command.Job("dev", supervisor, RunPrice(None, None), io.StringIO(), 0.0)
    try:
        return job.start(detach=False)
    finally:
        supervisor.leave()


def _delete(name: str) -> int:
    return removal.delete(FleetCommand("dev", (name,), yes=True))


def _monitor() -> int:
    return monitor.monitor(FleetCommand("dev"), monitor.Monitoring(interval_s=60))


class _Trainer(SliceTrainer):
    """The pipeline's, with the program of a person's."""

    def __init__(self, cloud: SharedCloud):
        owner = {"who": "pipeline", "from": "pipeline dev"}
        self._settings = _from_file("dev")
        self._fleets = OwnedFleets(cloud, OWNER.stack, "dev", owner)  # type: ignore[arg-type]
        self._requested, self._unseen = False, None

    def _item(self, run: Run) -> dict[str, Any]:
        return _item(run.training_name, "ab", True)


def _pipeline(cloud: SharedCloud) -> None:
    """A run's training, and a sweep a minute, until it has ended for a while."""
    trainer, run = _Trainer(cloud), mock.Mock(spec=Run, training_name="r17")
    try:
        trainer.start(run)
    except TrainingError:
        return  # of that name there is another's
    last_s = cloud.now_s
    while cloud.now_s < last_s + 600:
        record = trainer.look(run)
        last_s = cloud.now_s if record and record.progress is Progress.RUNNING else last_s
        with suppress(FleetError):  # the next sweep
            trainer.keep(lambda _: None)
        acting().pause(60.0)


class Model(RuleBasedStateMachine):
    """An environment with a fleet in its file, and names for ad hoc fleets."""

    def __init__(self) -> None:
        super().__init__()
        self.cloud = SharedCloud()
        self.replaced = ExitStack()
        self.replaced.enter_context(_replaced(self.cloud))
        self.started = 0

    def begin(self, name: str, program: Callable[[], object]) -> Actor:
        """Start a program; it stands before its first request."""
        actor = Actor(name, self.cloud, program)
        self.cloud.actors.append(actor)
        self.cloud.let(actor)
        self.started += 1
        return actor

    @property
    def running(self) -> list[Actor]:
        return [actor for actor in self.cloud.actors if actor.runs]

    # Few rules with weights: hypothesis leaves some rules out of each sequence.

    @rule(
        kind=st.sampled_from(["run", "run", "run", "monitor", "pipeline", "delete"]),
        person=st.sampled_from(["ann", "bob"]), name=st.sampled_from(NAMES),
        program=st.sampled_from(PROGRAMS), stops=st.booleans(), replace=st.booleans(),
    )  # fmt: skip
    def a_program_begins(
        self, kind: str, person: str, name: str, program: str, stops: bool, replace: bool
    ) -> None:
        if len(self.running) == MOST_ACTORS:
            self.running[0].doom = "interrupt"
        elif kind == "run":
            self.begin(person, lambda: _run(name, program, stops, replace))
        elif kind == "monitor":
            self.begin("monitor", _monitor)
        elif kind == "pipeline":
            self.begin("pipeline", lambda: _pipeline(self.cloud))
        else:
            self.begin(person, lambda: _delete(name))

    @precondition(lambda self: self.running)
    @rule(
        which=st.integers(0, MOST_ACTORS - 1), requests=st.integers(0, 25),
        fault=st.sampled_from(["", "before", "after", "answer", "answer", "stall", "interrupt"]),
    )  # fmt: skip
    def one_goes_on(self, which: int, requests: int, fault: str) -> None:
        """Some requests of it alone, and then a fault at its next one."""
        actor = self.running[which % len(self.running)]
        for _ in range(requests):
            if actor.runs and actor.wakes_s <= self.cloud.now_s:
                self.cloud.let(actor)
        if fault == "answer":
            actor.loses = True
        elif fault == "stall":
            actor.stalled = not actor.stalled
            self.cloud.faults["stall"] += actor.stalled
        elif fault:
            actor.doom = fault

    @rule(which=st.integers(0, 2), event=st.sampled_from(EVENTS))
    def a_node_changes(self, which: int, event: str) -> None:
        ready = [node for node in self.cloud.nodes.values() if node.state == "READY"]
        if not ready:
            self.cloud.advance(130)
            return
        node = ready[which % len(ready)]
        if event.startswith(("labels", "made")):
            self.somebody_else_changes(node, event)
            return
        self.cloud.faults[event.partition(" ")[0]] += 1
        if event == "preempted":
            node.state = "PREEMPTED"
        elif event.startswith("forged"):
            node.heartbeat, node.heartbeat_s = event.partition(" ")[2], self.cloud.now_s
        elif node.labels.get("fleet") != "base":
            node.work, node.heartbeat, node.heartbeat_s = event, "", self.cloud.now_s

    def somebody_else_changes(self, node: Machine, event: str) -> None:
        """Of an ad hoc fleet's: by its labels, or another node in its place."""
        if "record" not in (node.taken or node.labels):
            return
        if event == "labels taken" and node.member:
            if not any(actor.read == (node.zone, node.name) for actor in self.running):
                self.cloud.faults["labels"] += node.taken is None
                self.cloud.take_labels(node)
        elif event.startswith("made") and (event.endswith("bare") or self.cloud.confirmed(node)):
            self.cloud.make_anew(node, labels=not event.endswith("bare"))

    @rule(
        seconds=st.sampled_from([1, 30, 130, 200, 700]),
        silent=st.sampled_from([False, False, False, False, True]),
    )
    def time_passes(self, seconds: int, silent: bool) -> None:
        self.cloud.silent = {ZONE} if silent else set()
        self.cloud.advance(seconds)
        self.cloud.silent = set()

    def teardown(self) -> None:
        """All leave; a monitor looks, and what is left is as the records say; once deleted, all has ended."""
        try:
            self._end()
            SPENT.update(self.cloud.faults)
            SPENT.update({"sequences": 1, "programs": self.started})
        finally:
            for actor in self.running:
                actor.dead, actor.doom = True, "before"
                actor.go()
            self.replaced.close()

    def _end(self) -> None:
        cloud = self.cloud
        for actor in self.running:
            actor.stalled, actor.loses, actor.doom = False, False, "interrupt"
        cloud.advance(200)
        for actor in self.running:
            actor.doom = "before"
        cloud.advance(100)
        assert not self.running
        cloud.leave_to_us()
        watcher = self.begin("monitor", _monitor)
        cloud.advance(1000)
        kept = {node.labels["fleet"] for node in cloud.nodes.values() if node.state != "PREEMPTED"}
        lost = [record for name, record in cloud.records().items() if name not in kept]
        if any(record["phase"] == Phase.WANTED for record in lost):
            cloud.advance(3600)  # it was lost twice soon after it had come back
        assert watcher.runs, repr(watcher.outcome)
        records = cloud.records()
        assert all(record["phase"] != Phase.ENDING for record in records.values())
        wanted = {name: record for name, record in records.items() if record["phase"] == Phase.WANTED}
        left = [node for node in cloud.nodes.values() if not cloud.is_orphan(node)]
        present = {node.labels["fleet"]: node for node in left}
        assert present.keys() - {"base"} <= wanted.keys(), "a node without a record"
        assert all(name in present or record.get(STOP_WHEN_DONE) for name, record in wanted.items())
        assert "base" in present
        for name, record in wanted.items():
            if node := present.get(name):
                assert node.labels["bundle"] == record["bundle"][:12]
        watcher.doom = "interrupt"
        cloud.advance(100)
        for name in wanted:
            ends = self.begin("ann", partial(_delete, name))
            cloud.advance(300)
            assert ends.outcome == 0, repr(ends.outcome)
        left = [node for node in cloud.nodes.values() if not cloud.is_orphan(node)]
        assert {node.labels["fleet"] for node in left} == {"base"}
        assert all(record["phase"] == Phase.ENDED for record in cloud.records().values())


def explore(sequences: int, first: int | None = None) -> None:
    """Try sequences; with `first`: those of that seed."""
    options = hypothesis_settings(
        max_examples=sequences, stateful_step_count=30, deadline=None, database=None, print_blob=False,
        derandomize=first is None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    machine = Model if first is None else seed(first)(type("Seeded", (Model,), {}))
    run_state_machine_as_test(machine, settings=options)


def test_programs_of_several_people_keep_one_node_each_and_end_what_has_ended() -> None:
    SPENT.clear()
    explore(120)
    faults = (
        "killed before", "killed after", "lost answer", "stall", "preempted", "forged", "done", "final",
        "labels", "made anew",
    )  # fmt: skip
    assert all(SPENT[fault] for fault in faults), SPENT


@pytest.mark.prove
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_sequences(part: int) -> None:
    explore(1000, part)

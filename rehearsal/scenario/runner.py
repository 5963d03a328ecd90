"""Runs a scenario step by step, and keeps the record that the report is made of."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from rehearsal.cloud.control import Control
from rehearsal.errors import RehearsalError, ScenarioFailed
from rehearsal.kubernetes.node import logs
from rehearsal.scenario.bucket import CLIENT_ERRORS
from rehearsal.scenario.building import follow_nodes
from rehearsal.scenario.record import Record, RunRecord, StepRecord
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.shell import Shell
from rehearsal.scenario.step import Step
from rehearsal.world.console import Narrator
from rehearsal.world.layout import Layout


class Runner:
    """A run of a scenario. The record is on disk after every step."""

    def __init__(self, scenario: Scenario, layout: Layout, report: Path, narrator: Narrator) -> None:
        seed = scenario.seed or 0
        self.record = Record(scenario.name, scenario.title, scenario.environment, seed, time.time())
        self._steps = scenario.steps
        self._narrator = narrator
        self._layout, self._report = layout, report
        self.scene = Scene(
            scenario.environment,
            layout.program,
            self.record,
            Control(layout.control),
            Shell(
                layout.program,
                report / "logs",
                f"rehearsal: Google's clock runs {scenario.clock:g} times as fast",
            ),
            random.Random(seed),
            narrator.line,
        )

    def act(self) -> Record:
        """Run every step in order, up to the first that fails; then collect the rest of the record."""
        try:
            for step in self._steps:
                self._run(step)
            self._settle()
            self.record.verdict = "passed"
        except RehearsalError as failure:
            self.record.verdict, self.record.reason = "failed", str(failure)
        except CLIENT_ERRORS as failure:
            self.record.verdict, self.record.reason = "failed", f"Cloud Storage can't be read: {failure}"
        except KeyboardInterrupt:
            self.record.verdict, self.record.reason = "interrupted", "by the user"
        finally:
            self.scene.shell.end()
            self._gather()
            self.record.end = time.time()
            self.record.save(self._report / "record.json")
        return self.record

    def _run(self, step: Step) -> None:
        begun = time.time()
        outcome = "failed"
        self.scene.shell.account = step.account or ""
        try:
            with self._narrator.step(step.title) as note:
                self.scene.note = note
                step.act(self.scene)
            outcome = "ok"
        finally:
            ended = StepRecord(step.title, step.kind, begun, time.time(), outcome, self.scene.note.text)
            self.record.steps.append(ended)
            self.record.save(self._report / "record.json")

    def _settle(self) -> None:
        """Fail a scenario whose steps all passed, if a fault was never observed or a request was refused."""
        self._count()
        unseen = [fault["name"] for fault in self.record.faults if not fault["observed"]]
        if unseen:
            raise ScenarioFailed(f"never observed: {', '.join(unseen)}; the fault proves nothing")
        if self.record.mistakes:
            raise ScenarioFailed("the emulated cloud made mistakes of its own")
        refused = self.record.requests.get("refused", 0)
        if refused:
            why = "refused as invalid or not emulated"
            raise ScenarioFailed(f"{refused} requests were {why}: {', '.join(self._refusals())}")

    def _count(self) -> None:
        status = self.scene.control.status()
        self.record.requests, self.record.mistakes = status["requests"], status["mistakes"]
        access = self.scene.control.access()
        self.record.served, self.record.permissions = access["served"], access["asked"]
        observed = {rule["id"]: rule["observed"] for rule in self.scene.control.faults()}
        for fault in self.record.faults:
            fault["observed"] = observed.get(fault["id"], 0)

    def _refusals(self) -> list[str]:
        methods = self.record.requests["methods"]
        return [f"{name} ({count['refused']})" for name, count in methods.items() if count["refused"]]

    def _gather(self) -> None:
        """Record what the report shows and what ends with the world; after a failure, as far as possible."""
        scene = self.scene
        for part in (
            self._count,
            lambda: follow_nodes(scene),
            self._gather_boots,
            self._gather_runs,
            self._gather_pages,
            self._gather_output,
        ):
            try:
                part()
            except Exception as missing:
                if self.record.verdict == "passed":
                    raise
                self._narrator.line(f"      not in the report: {missing}")
        # Beside another failure too, which they may explain.
        mistakes = [f"a mistake of the emulation's own: {why}" for why in self.record.mistakes]
        self.record.reason = "\n".join(filter(None, [self.record.reason, *mistakes]))
        for name, since in scene.born.items():
            self.record.up_s[name] = self.record.up_s.get(name, 0.0) + time.time() - since
        begun = [boot for boot in scene.boots.values() if boot.stages]
        self.record.boots = sorted(begun, key=lambda boot: (boot.stages[0].start, boot.worker))

    def _gather_boots(self) -> None:
        """Read the boots of nodes that a fleet's controller recreated: no step waited for them."""
        for node in self.scene.lost_at:
            self.scene.read_boots(node)

    def _gather_runs(self) -> None:
        bucket = self.scene.bucket
        runs = sorted({name.split("/")[1] for name in bucket.names("runs/") if name.count("/") > 1})
        self.record.runs = [
            RunRecord(run, bucket.losses(run), bucket.events(run), bucket.final(run) or {}) for run in runs
        ]

    def _gather_pages(self) -> None:
        """Write the page of each run beside the report, by the command that a user has for it."""
        scene, show = self.scene, [sys.executable, "-m", "cli", "runs", "show", self.scene.environment]
        scene.shell.account = ""
        for run in self.record.runs:
            if scene.bucket.names(f"runs/{run.name}/config.json"):
                page = f"runs/{run.name}.html"
                scene.shell.run([*show, run.name, "--no-open", "--out", str(self._report / page)])
                run.page = page

    def _gather_output(self) -> None:
        """Keep what pods printed, after a failure: it ends with the world."""
        if self.record.verdict != "passed":
            logs.keep(self._layout.clusters, self._report / "logs" / "pods")

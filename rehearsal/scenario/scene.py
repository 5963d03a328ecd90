"""Context of the steps of a running scenario."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from rehearsal.cloud.control import Control
from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.bucket import Bucket, ObjectFacts
from rehearsal.scenario.record import Boot, Record, boot_from, script_run
from rehearsal.scenario.shell import Shell
from rehearsal.world.checkout import read_settings
from rehearsal.world.console import Note

T = TypeVar("T")


def _labels(node: dict[str, Any]) -> list[str]:
    return [f"{label}={value}" for label, value in node.get("labels", {}).items()]


@dataclass(frozen=True)
class Stalled:
    """A job that was stopped, and what was committed of its stream by then."""

    run: str
    worker: int
    shards: dict[str, ObjectFacts]


@dataclass
class Scene:
    """A scenario in its world. `program` is the copy of the tree in which the commands run."""

    environment: str
    program: Path
    record: Record
    control: Control
    shell: Shell
    random: random.Random
    print: Callable[[str], None]
    note: Note = field(default_factory=Note)
    noted: dict[str, ObjectFacts] = field(default_factory=dict)
    lost_at: dict[str, float] = field(default_factory=dict)  # node → time of its newest kill
    boots: dict[str, Boot] = field(default_factory=dict)  # by run of the boot script: the newest of it
    past: set[str] = field(default_factory=set)  # runs of it that no `ready` may count again
    stalled: dict[str, Stalled] = field(default_factory=dict)  # by node
    incidents: set[str] = field(default_factory=set)  # that a step has waited for
    shards: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # by folder: the one that is gone
    born: dict[str, float] = field(default_factory=dict)  # node → since when it exists

    @cached_property
    def bucket(self) -> Bucket:
        """The checkpoint bucket; it need not exist yet."""
        settings = read_settings(self.program, self.environment)
        return Bucket(str(settings["gcp:project"]), str(settings["storage:bucketName"]))

    @cached_property
    def controllers(self) -> Bucket:
        """The controllers' bucket, which has the records of runs of the pipeline."""
        return Bucket(self.bucket.project, f"{self.bucket.name}-fleet")

    def instance(self, name: str) -> dict[str, Any] | None:
        """Return the Compute Engine instance with a machine, as the cloud describes it; None if none."""
        instances = self.control.status()["instances"]
        return next((instance for instance in instances if instance["name"] == name), None)

    def node(self, name: str) -> dict[str, Any] | None:
        """Return the node of a name, or with a label KEY=VALUE, in the cloud's description; None if none."""
        nodes = self.control.status()["nodes"]
        return next((node for node in nodes if name == node["name"] or name in _labels(node)), None)

    def hosts(self, name: str) -> list[str]:
        """Names of a node's hosts, or of an instance; ScenarioFailed if there is neither."""
        if self.instance(name) is not None:
            return [name]
        node = self.node(name)
        if node is None:
            raise ScenarioFailed(f"there is no node {name}")
        return [host["name"] for host in node["hosts"]]

    def read_boots(self, node: str) -> list[dict[str, Any]]:
        """Return the newest boot status of each worker; the record keeps every boot ever read."""
        statuses = self.bucket.boots(node)
        for status in statuses:
            if status["worker"] is not None:
                self.boots[script_run(status)] = boot_from(status)
        return statuses

    def forget_boots(self, node: str) -> None:
        """Mark all boots until now as past: a later `ready` waits for new ones."""
        self.past.update(script_run(status) for status in self.read_boots(node))

    def wait_until(
        self, what: str, probe: Callable[[], T | None], timeout_s: float, poll_s: float = 0.5
    ) -> T:
        """Return the first result that is neither None nor False; ScenarioFailed after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while True:
            answer = probe()
            if answer is not None and answer is not False:
                return answer
            if time.monotonic() > end:
                raise ScenarioFailed(
                    f"{what}: not within {timeout_s:.0f} s; {self.note.text or 'nothing was seen'}"
                )
            time.sleep(poll_s)

"""Steps about a fleet that extracts: its keeper, strikes at its members, and what they left."""

from __future__ import annotations

import time
from collections import Counter
from typing import Literal

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.bucket import ObjectFacts
from rehearsal.scenario.killing import OFF_TIMEOUT_S
from rehearsal.scenario.record import Check, KillRecord
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step
from rehearsal.scenario.watching import settle


@step("wait: {count} shards of {run}'s worker {worker}")
def shards(scene: Scene, run: str, worker: int, count: int, timeout_s: float = 600.0) -> None:
    """Wait until a worker of an extraction has committed so many shards."""

    def committed() -> bool:
        committed_shards = len(of_worker(scene, run, worker))
        scene.note.text = f"{committed_shards} shards"
        return committed_shards >= count

    scene.wait_until(f"{count} shards of worker {worker}", committed, timeout_s)


@step("preempt {node}: {how}")
def preempt(scene: Scene, node: str, how: Literal["notice", "power-loss"], run: str) -> None:
    """Preempt a node now, with 30 s of notice or without; the fleet controller must detect it."""
    lost_at = time.time()
    scene.control.preempt(node, notice=how == "notice")
    if how != "notice":
        settle(scene, node, "PREEMPTED", OFF_TIMEOUT_S)
    scene.lost_at[node] = time.time()
    record_fault(scene, node, how, run, lost_at)


def record_fault(scene: Scene, node: str, how: str, run: str, lost_at: float) -> None:
    """For the report: who was struck, when, and how many shards the run had by then."""
    count = len(scene.bucket.names(f"extractions/{run}/activations/"))
    scene.record.kills.append(KillRecord(lost_at, node, how, run, shards=count))


def of_worker(scene: Scene, run: str, worker: int) -> dict[str, ObjectFacts]:
    """Return the committed shards of one worker."""
    return scene.bucket.facts(f"extractions/{run}/activations/tpu_{worker}/")


@step("wait: {run} extracted by {workers} workers")
def extracted(scene: Scene, run: str, workers: int, timeout_s: float = 1200.0) -> None:
    """Wait until all workers of an extraction are done."""

    def finished() -> bool:
        counts = Counter(
            str((scene.bucket.json(f"{prefix}checkpoint_worker_{worker}.json") or {}).get("status", "absent"))
            for worker in range(workers)
        )
        scene.note.text = ", ".join(f"{count} {status}" for status, count in counts.items())
        return counts["completed"] == workers

    prefix = f"extractions/{run}/checkpoints/"
    scene.wait_until(f"{run} extracted", finished, timeout_s, poll_s=2.0)
    made = scene.bucket.facts(f"extractions/{run}/activations/")
    size_mb = sum(facts.size_bytes for facts in made.values()) / 1e6
    scene.note.text = f"{workers} workers, {len(made)} shards, {size_mb:.1f} MB"


@step("{first} and {second} left the same shards")
def alike(scene: Scene, first: str, second: str) -> None:
    """Check that two extractions left the same shards, byte for byte."""
    shards_by_run: list[dict[str, tuple[int, str]]] = []
    for run in (first, second):
        prefix = f"extractions/{run}/activations/"
        facts: dict[str, ObjectFacts] = scene.bucket.facts(prefix)
        shards_by_run.append({name[len(prefix) :]: (o.size_bytes, o.crc32c) for name, o in facts.items()})
    left, right = shards_by_run
    if not left:
        raise ScenarioFailed(f"{first} left no shard")
    differing = sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    if differing:
        name = differing[0]
        raise ScenarioFailed(
            f"{len(differing)} of {len(left)} shards differ, the first {name}: "
            f"{first} {left.get(name)}, {second} {right.get(name)}"
        )
    size_mb = sum(size for size, _ in left.values()) / 1e6
    scene.note.text = f"{len(left)} shards, {size_mb:.1f} MB, identical"
    scene.record.checks.append(Check(f"{second} left what {first} did", scene.note.text))

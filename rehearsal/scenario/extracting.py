"""Steps about a fleet that extracts: its keeper, strikes at its members, and what they left."""

from __future__ import annotations

import time
from collections import Counter

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import steps
from rehearsal.scenario.bucket import ObjectFacts
from rehearsal.scenario.killing import OFF_TIMEOUT_S
from rehearsal.scenario.record import Check, KillRecord
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.watching import settle


def shards(scene: Scene, step: steps.Shards) -> None:
    """So many shards of a worker are committed."""

    def committed() -> bool:
        found = len(of_worker(scene, step.run, step.worker))
        scene.note.text = f"{found} shards"
        return found >= step.count

    scene.wait_until(f"{step.count} shards of worker {step.worker}", committed, step.timeout_s)


def preempt(scene: Scene, step: steps.Preempt) -> None:
    """Take a node away now."""
    lost_at = time.time()
    scene.control.preempt(step.node, notice=step.how == "notice")
    if step.how != "notice":
        settle(scene, step.node, "PREEMPTED", OFF_TIMEOUT_S)
    scene.lost_at[step.node] = time.time()
    record_fault(scene, step.node, step.how, step.run, lost_at)


def record_fault(scene: Scene, node: str, how: str, run: str, lost_at: float) -> None:
    """For the report: who was struck, when, and how many shards the run had by then."""
    found = len(scene.bucket.names(f"extractions/{run}/activations/"))
    scene.record.kills.append(KillRecord(lost_at, node, how, run, shards=found))


def of_worker(scene: Scene, run: str, worker: int) -> dict[str, ObjectFacts]:
    """The shards of one worker that are committed."""
    return scene.bucket.facts(f"extractions/{run}/activations/tpu_{worker}/")


def extracted(scene: Scene, step: steps.Extracted) -> None:
    """Every worker of an extraction says that it is done."""

    def finished() -> bool:
        found = Counter(
            str((scene.bucket.json(f"{prefix}checkpoint_worker_{worker}.json") or {}).get("status", "absent"))
            for worker in range(step.workers)
        )
        scene.note.text = ", ".join(f"{count} {status}" for status, count in found.items())
        return found["completed"] == step.workers

    prefix = f"extractions/{step.run}/checkpoints/"
    scene.wait_until(f"{step.run} extracted", finished, step.timeout_s, poll_s=2.0)
    made = scene.bucket.facts(f"extractions/{step.run}/activations/")
    size_mb = sum(facts.size_bytes for facts in made.values()) / 1e6
    scene.note.text = f"{step.workers} workers, {len(made)} shards, {size_mb:.1f} MB"


def alike(scene: Scene, step: steps.Alike) -> None:
    """Two extractions left the same shards, byte for byte, each made once."""
    found: list[dict[str, tuple[int, str]]] = []
    for run in step.runs:
        prefix = f"extractions/{run}/activations/"
        facts: dict[str, ObjectFacts] = scene.bucket.facts(prefix)
        found.append({name[len(prefix) :]: (one.size_bytes, one.crc32c) for name, one in facts.items()})
    first, second = found
    if not first:
        raise ScenarioFailed(f"{step.runs[0]} left no shard")
    differing = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    if differing:
        name = differing[0]
        raise ScenarioFailed(
            f"{len(differing)} of {len(first)} shards differ, the first {name}: "
            f"{step.runs[0]} {first.get(name)}, {step.runs[1]} {second.get(name)}"
        )
    size_mb = sum(size for size, _ in first.values()) / 1e6
    scene.note.text = f"{len(first)} shards, {size_mb:.1f} MB, identical"
    scene.record.checks.append(Check(f"{step.runs[1]} left what {step.runs[0]} did", scene.note.text))

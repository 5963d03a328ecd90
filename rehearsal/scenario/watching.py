"""Steps that wait for hosts and jobs, and those that look at what they left."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.record import Check, boot_from, epoch, script_run
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step

# So many failures of a job in one wait are no accident.
_GIVE_UP_FAILURES = 3


@step("wait: all hosts of {node} ready")
def ready(scene: Scene, node: str, timeout_s: float = 600.0) -> None:
    """Wait until every host of a node has reported a new boot as ready."""
    workers = len(scene.hosts(node))

    def all_ready() -> list[dict[str, Any]] | None:
        fresh = [status for status in scene.read_boots(node) if script_run(status) not in scene.past]
        for status in fresh:
            if status["state"] in ("failed", "rerun-failed"):
                raise ScenarioFailed(_failure(status))
        done = [status for status in fresh if status["state"] == "ready"]
        stages = Counter(str(status["stage"]) for status in fresh if status["state"] != "ready")
        behind = [f"{count} in {stage}" for stage, count in stages.most_common()]
        scene.note.text = ", ".join([f"{len(done)} of {workers} ready", *behind])
        return done if len(done) == workers else None

    # Each look reads an object a host: not so often that sixty-four hosts feel it.
    poll_s = 0.4 + workers / 30
    done = scene.wait_until(f"hosts of {node} ready", all_ready, timeout_s, poll_s)
    taken = [boot_from(status).ready_s or 0.0 for status in done]  # an instance has no worker's number
    scene.past.update(script_run(status) for status in done)
    scene.note.text = f"{workers} hosts, boot script {min(taken):.1f}–{max(taken):.1f} s"


def _failure(status: dict[str, Any]) -> str:
    failed = [stage for stage in status["stages"] if stage["state"] == "failed"]
    name, tail = (failed[-1]["name"], failed[-1]["log_tail"]) if failed else (status["stage"], "")
    lines = "\n".join(f"    {line}" for line in str(tail).splitlines())
    number = status["worker"]
    who = "a host without a number" if number is None else f"worker {number}"
    return f"{who} of {status['node']} failed in stage {name}:\n{lines}"


def at_step(scene: Scene, run: str, step: int, since: float) -> int | None:
    """Return a run's step, once it is `step` or more and was reported after `since`; else None."""
    status = scene.bucket.status(run)
    if status is None:
        scene.note.text = f"{run} hasn't started"
        return None
    scene.note.text = f"{run}: {status['state']}, step {status['step']} of {status['steps']}"
    fresh = epoch(status["updated"]) > since
    return int(status["step"]) if fresh and status["step"] >= step else None


def training(scene: Scene, run: str, step: int, since: float) -> int | None:
    """As `at_step`, and the job is running; ScenarioFailed if it is done already."""
    reached = at_step(scene, run, step, since)
    status = scene.bucket.status(run) if reached is not None else None
    if status is not None and status["state"] == "done":
        raise ScenarioFailed(f"{run} was done before it could be killed at step {step}: give it more steps")
    return reached if status is not None and status["state"] == "running" else None


@step("wait: {run} at step {number}")
def reach(scene: Scene, run: str, number: int, timeout_s: float = 600.0) -> None:
    """Wait until a run's job has reached a step."""
    begun = time.time()

    def reached() -> int | None:
        _require_progress(scene, run, begun)
        return at_step(scene, run, number, 0)

    scene.wait_until(f"{run} at step {number}", reached, timeout_s)


@step("wait: {run} done")
def done(scene: Scene, run: str, timeout_s: float = 1200.0) -> None:
    """Wait until a run is done: its last checkpoint committed, its final.json written."""
    begun = time.time()

    def finished() -> bool:
        _require_progress(scene, run, begun)
        at_step(scene, run, 0, 0)
        return scene.bucket.final(run) is not None

    scene.wait_until(f"{run} done", finished, timeout_s)
    final = scene.bucket.final(run) or {}
    restores = [event for event in scene.bucket.events(run) if event["kind"] == "restore"]
    scene.note.text = f"step {final['step']}, {len(restores)} restores"


def _require_progress(scene: Scene, run: str, since: float) -> None:
    """ScenarioFailed once a job that systemd starts again and again has failed too often."""
    status = scene.bucket.status(run)
    if status is None or status["state"] != "failed":
        return
    failures = [e for e in scene.bucket.events(run) if e["kind"] == "failed" and epoch(e["time"]) > since]
    if len(failures) >= _GIVE_UP_FAILURES:
        raise ScenarioFailed(
            f"{run} failed {len(failures)} times, the last time with: {failures[-1]['reason']}"
        )


@step("{first} and {second} are the same to the last bit")
def same(scene: Scene, first: str, second: str) -> None:
    """Check that two runs ended alike: final.json and every step's loss, bit for bit."""
    finals = [scene.bucket.final(run) for run in (first, second)]
    for run, final in zip((first, second), finals, strict=True):
        if final is None:
            raise ScenarioFailed(f"{run} has no final.json: it isn't done")
    if finals[0] != finals[1]:
        raise ScenarioFailed(f"{first} ended as {finals[0]}\n{second} ended as {finals[1]}")
    losses = [scene.bucket.losses(run) for run in (first, second)]
    exact = [{entry[0]: entry[2] for entry in loss} for loss in losses]
    differing = sorted(n for n in exact[0].keys() | exact[1].keys() if exact[0].get(n) != exact[1].get(n))
    if differing:
        n = differing[0]
        raise ScenarioFailed(
            f"{len(differing)} losses differ, the first at step {n}: "
            f"{first} {exact[0].get(n)}, {second} {exact[1].get(n)}"
        )
    final = finals[0] or {}
    if len(exact[0]) != final["step"]:
        raise ScenarioFailed(f"{len(exact[0])} losses were recorded in {final['step']} steps")
    scene.record.checks.append(
        Check(
            f"{second} ended bit for bit where {first} did",
            f"{len(exact[0])} losses, params {final['params_sums_sha256'][:12]}…, "
            f"optimizer {final['opt_state_sums_sha256'][:12]}…",
        )
    )
    scene.note.text = f"{len(exact[0])} losses and all parameters identical"


@step("{run} resumed from step {from_step} or later")
def resumed(scene: Scene, run: str, from_step: int) -> None:
    """Check that a run resumed from a checkpoint of at least this step."""
    restores = [event["step"] for event in scene.bucket.events(run) if event["kind"] == "restore"]
    if not restores or max(restores) < from_step:
        raise ScenarioFailed(f"{run} resumed from steps {restores or 'none'}; expected {from_step} or later")
    scene.note.text = f"restores at steps {', '.join(map(str, restores))}"


@step("note the objects in the bucket: {prefixes}")
def remember(scene: Scene, *prefixes: str) -> None:
    """Note every object below these prefixes: name, generation, size."""
    scene.noted.clear()
    for prefix in prefixes:
        facts = scene.bucket.facts(prefix)
        if not facts:
            raise ScenarioFailed(f"there is nothing below gs://{scene.bucket.name}/{prefix}")
        scene.noted.update(facts)
    scene.note.text = f"{len(scene.noted)} objects"


@step("the bucket still holds every noted object")
def survived(scene: Scene) -> None:
    """Check that every noted object still exists, unchanged."""
    if not scene.noted:
        raise ScenarioFailed("nothing was noted before; put a `remember` step in front")
    now = scene.bucket.facts("")
    lost = [name for name, facts in scene.noted.items() if now.get(name) != facts]
    if lost:
        raise ScenarioFailed(
            f"{len(lost)} of {len(scene.noted)} objects are gone or changed: {', '.join(lost[:5])}"
        )
    size_mb = sum(facts.size_bytes for facts in scene.noted.values()) / 1e6
    scene.note.text = f"{len(scene.noted)} objects, {size_mb:.1f} MB, unchanged"
    after = next((previous for previous in reversed(scene.record.steps) if previous.kind == "destroy"), None)
    command, _, note = after.text.partition(",") if after else ("", "", "")
    claim = f"the bucket is unchanged after `{command}`{note}" if after else "the bucket is unchanged"
    scene.record.checks.append(Check(claim, scene.note.text))


def settle(scene: Scene, node: str, state: str, timeout_s: float) -> None:
    """Wait until a node is in a state and none of its hosts runs."""

    def off() -> bool:
        described = scene.node(node)
        return (
            described is not None
            and described["state"] == state
            and not any(h["running"] for h in described["hosts"])
        )

    scene.wait_until(f"{node} {state}", off, timeout_s)

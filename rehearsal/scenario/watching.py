"""Steps that wait for hosts and jobs, and those that look at what they left."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import steps
from rehearsal.scenario.record import Check, epoch, script_run
from rehearsal.scenario.scene import Scene

# So many failures of a job in one wait are no accident.
_GIVE_UP_FAILURES = 3


def ready(scene: Scene, step: steps.Ready) -> None:
    """Every host of a node has told of a boot that is new, and that it is ready."""
    workers = len(scene.hosts(step.node))

    def all_ready() -> list[dict[str, Any]] | None:
        fresh = [status for status in scene.read_boots(step.node) if script_run(status) not in scene.past]
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
    done = scene.wait_until(f"hosts of {step.node} ready", all_ready, step.timeout_s, poll_s)
    taken = [scene.boots[script_run(status)].ready_s or 0.0 for status in done]
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
    """The step that a run is at, once it is `step` or more and was said after `since`; else None."""
    status = scene.bucket.status(run)
    if status is None:
        scene.note.text = f"{run} hasn't started"
        return None
    scene.note.text = f"{run}: {status['state']}, step {status['step']} of {status['steps']}"
    fresh = epoch(status["updated"]) > since
    return int(status["step"]) if fresh and status["step"] >= step else None


def training(scene: Scene, run: str, step: int, since: float) -> int | None:
    """As `at_step`, and the job is running; ScenarioFailed if it is done already."""
    found = at_step(scene, run, step, since)
    status = scene.bucket.status(run) if found is not None else None
    if status is not None and status["state"] == "done":
        raise ScenarioFailed(f"{run} was done before it could be killed at step {step}: give it more steps")
    return found if status is not None and status["state"] == "running" else None


def reach(scene: Scene, step: steps.Reach) -> None:
    """A run has got to a step."""
    begun = time.time()

    def reached() -> int | None:
        _require_progress(scene, step.run, begun)
        return at_step(scene, step.run, step.step, 0)

    scene.wait_until(f"{step.run} at step {step.step}", reached, step.timeout_s)


def done(scene: Scene, step: steps.Done) -> None:
    """A run is done."""
    begun = time.time()

    def finished() -> bool:
        _require_progress(scene, step.run, begun)
        at_step(scene, step.run, 0, 0)
        return scene.bucket.final(step.run) is not None

    scene.wait_until(f"{step.run} done", finished, step.timeout_s)
    final = scene.bucket.final(step.run) or {}
    restores = [event for event in scene.bucket.events(step.run) if event["kind"] == "restore"]
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


def same(scene: Scene, step: steps.Same) -> None:
    """Two runs ended with the same parameters, and every loss on the way was the same, to the last bit."""
    first, second = step.runs
    finals = [scene.bucket.final(run) for run in step.runs]
    for run, final in zip(step.runs, finals, strict=True):
        if final is None:
            raise ScenarioFailed(f"{run} has no final.json: it isn't done")
    if finals[0] != finals[1]:
        raise ScenarioFailed(f"{first} ended as {finals[0]}\n{second} ended as {finals[1]}")
    losses = [scene.bucket.losses(run) for run in step.runs]
    exact = [{entry[0]: entry[2] for entry in each} for each in losses]
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
            f"{len(exact[0])} losses, params {final['params_sha256'][:12]}…, "
            f"optimizer {final['opt_state_sha256'][:12]}…",
        )
    )
    scene.note.text = f"{len(exact[0])} losses and all parameters identical"


def resumed(scene: Scene, step: steps.Resumed) -> None:
    """A run resumed from a checkpoint, and not from nothing."""
    restores = [event["step"] for event in scene.bucket.events(step.run) if event["kind"] == "restore"]
    if not restores or max(restores) < step.from_step:
        raise ScenarioFailed(
            f"{step.run} resumed from steps {restores or 'none'}; expected {step.from_step} or later"
        )
    scene.note.text = f"restores at steps {', '.join(map(str, restores))}"


def remember(scene: Scene, step: steps.Remember) -> None:
    """Note what is in the bucket now, in place of what was noted before."""
    scene.noted.clear()
    for prefix in step.prefixes:
        found = scene.bucket.facts(prefix)
        if not found:
            raise ScenarioFailed(f"there is nothing below gs://{scene.bucket.name}/{prefix}")
        scene.noted.update(found)
    scene.note.text = f"{len(scene.noted)} objects"


def survived(scene: Scene, step: steps.Survived) -> None:
    """All that was noted is there still, byte for byte."""
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
    after = next((each for each in reversed(scene.record.steps) if each.kind == "destroy"), None)
    claim = f"the bucket outlived `{after.text}`" if after else "the bucket is as it was"
    scene.record.checks.append(Check(claim, scene.note.text))


def settle(scene: Scene, node: str, state: str, timeout_s: float) -> None:
    """Wait until a node is in a state and none of its hosts runs."""

    def off() -> bool:
        found = scene.node(node)
        return found is not None and found["state"] == state and not any(h["running"] for h in found["hosts"])

    scene.wait_until(f"{node} {state}", off, timeout_s)

"""Steps that take machines away, at moments drawn from the scenario's seed."""

from __future__ import annotations

import time

from rehearsal.scenario import steps
from rehearsal.scenario.building import recover
from rehearsal.scenario.record import KillRecord
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.watching import at_step, settle, training

# Longer than the 30 s of notice.
OFF_TIMEOUT_S = 90.0


def kill(scene: Scene, step: steps.Kill) -> None:
    """One kill at a random moment."""
    target = scene.random.randint(*step.between)
    pause_s = scene.random.uniform(0, step.jitter_s)
    _interrupt(scene, step.node, step.how, step.run, target, pause_s, step.timeout_s)


def kills(scene: Scene, step: steps.Kills) -> None:
    """Many, one in each of as many equal parts of the run, and recovery after each."""
    part = step.steps / (step.times + 1)
    for number in range(step.times):
        target = int(part * (number + scene.random.random()))
        how = scene.random.choice(step.how)
        pause_s = scene.random.uniform(0, step.jitter_s)
        at = _interrupt(scene, step.node, how, step.run, target, pause_s, step.timeout_s)
        scene.say(f"      kill {number + 1} of {step.times}: {how} at step {at}")
        if how not in steps.RECOVERS_ITSELF:
            recover(scene, steps.Recover(step.node, step.timeout_s))
    scene.note.text = f"{step.times} kills"


def _interrupt(
    scene: Scene, node: str, how: steps.Kind, run: str, target: int, pause_s: float, timeout_s: float
) -> int:
    """Wait for the drawn time, interrupt, wait until the hosts are off; return the step."""
    since = scene.lost_at.get(node, 0.0)
    scene.wait_until(
        f"{run} trains at step {target}", lambda: training(scene, run, target, since), timeout_s, poll_s=0.2
    )
    time.sleep(pause_s)
    # Once more: a run that ended in the meantime can't show that it survives.
    at = training(scene, run, target, 0) or at_step(scene, run, 0, 0) or 0
    worker = None
    if how == "crash":
        hosts = scene.hosts(node)
        worker = scene.random.randrange(len(hosts))
        line = "sudo systemctl kill --kill-who=main --signal=KILL tpu-job"
        scene.shell.ssh([hosts[worker]], line, timeout_s=30, prints="")
        lost_at = time.time()
    else:
        scene.forget_boots(node)
        lost_at = time.time()
        if how == "maintenance":
            scene.control.maintain(node, ends="READY")
        else:
            scene.control.preempt(node, notice=how == "notice")
        settle(scene, node, "REPAIRING" if how == "maintenance" else "PREEMPTED", OFF_TIMEOUT_S)
    # What the job said before it died is not news.
    scene.lost_at[node] = time.time()
    scene.record.kills.append(KillRecord(lost_at, node, how, run, at, worker))
    where = f" on worker {worker}" if worker is not None else ""
    scene.note.text = f"{how}{where}, last seen at step {at} (drawn: step {target}, then {pause_s:.1f} s)"
    return at

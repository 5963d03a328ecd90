"""Steps that take machines away, at moments drawn from the scenario's seed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from rehearsal.scenario.building import recover
from rehearsal.scenario.record import KillRecord
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step
from rehearsal.scenario.watching import at_step, settle, training

Kind = Literal["notice", "power-loss", "crash", "reboot", "maintenance"]
_RECOVERS_ITSELF = ("crash", "reboot", "maintenance")
# On one worker. A reboot comes a second later, so that the login ends before the machine does.
_LINES = {
    "crash": "sudo systemctl kill --kill-who=main --signal=KILL tpu-job",
    "reboot": "sudo systemd-run --quiet --on-active=1 systemctl reboot --force --force",
}
# Longer than the 30 s of notice.
OFF_TIMEOUT_S = 90.0


def _check_kill(arguments: Mapping[str, Any]) -> None:
    first, last = arguments["between"]
    if first > last:
        raise ValueError(f"between: {first} is greater than {last}")


@step("{node}: {how} at a random step of {run}", check=_check_kill)
def kill(
    scene: Scene,
    node: str,
    how: Kind,
    run: str,
    between: tuple[int, int],
    jitter_s: float = 2.0,
    timeout_s: float = 900.0,
) -> None:
    """Interrupt a node at a random time: at a step of `run` drawn from `between`, plus up to `jitter_s`.

    `node` is its name, or a label KEY=VALUE of it.

    `notice` and `power-loss` preempt it, with 30 s of notice and without; `crash` sends SIGKILL to the job
    on one worker, drawn too, and `reboot` starts its host anew without a word; `maintenance` is Google's. A
    preempted node must be recovered by a later step; the others recover by themselves.
    """
    target = scene.random.randint(*between)
    pause_s = scene.random.uniform(0, jitter_s)
    _interrupt(scene, node, how, run, target, pause_s, timeout_s)


def _check_kills(arguments: Mapping[str, Any]) -> None:
    if not arguments["how"]:
        raise ValueError("how: at least one kind is required")
    if not 1 <= arguments["times"] <= arguments["steps"]:
        raise ValueError(f"times: {arguments['times']} kills don't fit into {arguments['steps']} steps")


@step("{times} random kills of {node} while {run} trains", check=_check_kills)
def kills(
    scene: Scene,
    node: str,
    run: str,
    times: int,
    steps: int,
    how: tuple[Kind, ...] = ("notice", "power-loss", "crash"),
    jitter_s: float = 2.0,
    timeout_s: float = 900.0,
) -> None:
    """Interrupt and recover a node `times` times, each kind drawn from `how`, spread over a run's `steps`."""
    part = steps / (times + 1)
    for number in range(times):
        target = int(part * (number + scene.random.random()))
        chosen = scene.random.choice(how)
        pause_s = scene.random.uniform(0, jitter_s)
        at = _interrupt(scene, node, chosen, run, target, pause_s, timeout_s)
        scene.print(f"      kill {number + 1} of {times}: {chosen} at step {at}")
        if chosen not in _RECOVERS_ITSELF:
            recover(node, timeout_s).act(scene)
    scene.note.text = f"{times} kills"


def _interrupt(
    scene: Scene, node: str, how: Kind, run: str, target: int, pause_s: float, timeout_s: float
) -> int:
    """Wait for the drawn time, interrupt, wait until the hosts are off; return the step."""
    since = scene.lost_at.get(node, 0.0)
    scene.wait_until(
        f"{run} trains at step {target}", lambda: training(scene, run, target, since), timeout_s, poll_s=0.2
    )
    node = str((scene.node(node) or {"name": node})["name"])
    time.sleep(pause_s)
    # Once more: a run that ended in the meantime can't show that it survives.
    at = training(scene, run, target, 0) or at_step(scene, run, 0, 0) or 0
    worker = None
    if line := _LINES.get(how):
        hosts = scene.hosts(node)
        worker = scene.random.randrange(len(hosts))
        scene.shell.ssh([hosts[worker]], line, timeout_s=120, prints="")
        lost_at = time.time()
    else:
        scene.forget_boots(node)
        lost_at = time.time()
        if how == "maintenance":
            scene.control.maintain(node, ends="READY")
        else:
            scene.control.preempt(node, notice=how == "notice")
        settle(scene, node, "REPAIRING" if how == "maintenance" else "PREEMPTED", OFF_TIMEOUT_S)
    # Losses that the job logged before it died don't count as training after the interruption.
    scene.lost_at[node] = time.time()
    scene.record.kills.append(KillRecord(lost_at, node, how, run, at, worker))
    where = f" on worker {worker}" if worker is not None else ""
    scene.note.text = f"{how}{where}, last seen at step {at} (drawn: step {target}, then {pause_s:.1f} s)"
    return at

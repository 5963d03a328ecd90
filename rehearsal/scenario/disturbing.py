"""Steps that leave a worker its machine and take something else: room on its disk, or time."""

from __future__ import annotations

import re
import time
from typing import Any

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario import steps
from rehearsal.scenario.extracting import of_worker, record_fault
from rehearsal.scenario.record import Check, KillRecord, epoch, script_run
from rehearsal.scenario.scene import Scene, Stalled
from rehearsal.scenario.watching import at_step, training

_SSH_S = 120.0
_HOW = {"notice": "preempted with notice", "power-loss": "lost without notice"}
_NO_REQUEST = 10**9  # asks for none, and hears the next one's number
# fallocate takes all there is before it fails; a write of the job's own user shows that nothing is left.
_FILL = (
    "sudo fallocate --length 1T /var/filled;"
    " sudo -u tpu dd if=/dev/zero of=/var/lib/tpu/job/more count=1 2>&1; true"
)
_GO_ON = (
    "sudo systemctl kill --signal=CONT tpu-job;"
    " while systemctl is-active --quiet tpu-job; do sleep 0.5; done;"
    " systemctl show --property=ExecMainStatus tpu-job;"
    " sudo journalctl --unit=tpu-job --lines=20 --output=cat"
)


def fill(scene: Scene, step: steps.Fill) -> None:
    """The disk is full, as a write there says; shards are committed all the same."""
    (host, *_), lost_at = scene.hosts(step.node), time.time()
    scene.shell.ssh([host], _FILL, timeout_s=_SSH_S, prints="No space left on device")
    record_fault(scene, step.node, "disk", step.run, lost_at)
    before = len(of_worker(scene, step.run, step.worker))

    def went_on() -> bool:
        found = len(of_worker(scene, step.run, step.worker))
        scene.note.text = f"{before} shards, then {found}"
        return found >= before + step.more

    scene.wait_until(f"{step.more} more shards of worker {step.worker}", went_on, step.timeout_s)
    scene.record.checks.append(
        Check("a full disk stops no extraction that runs", f"{step.node}: {scene.note.text}")
    )


def lose(scene: Scene, step: steps.Lose) -> None:
    """The nodes are gone from the cluster, by its own word; a run that trained there trains elsewhere."""
    (names,) = [found["nodes"] for found in scene.control.status()["control_planes"].values()] or [{}]
    if not (before := names.get(step.pool, 0)):
        raise ScenarioFailed(f"no nodes of {step.pool} are in a cluster; the pools there: {names or 'none'}")
    at, lost_at = (at_step(scene, step.run, 0, 0) if step.run else None), time.time()
    scene.control.clusters("lose", pool=step.pool, notice=step.how == "notice", for_s=step.for_s)

    def gone() -> bool:
        (found,) = scene.control.status()["control_planes"].values()
        return not found["nodes"].get(step.pool, 0)

    scene.wait_until(f"the loss of {step.pool}", gone, step.timeout_s, poll_s=0.2)
    scene.note.text = f"{before} nodes"
    if not step.run:
        return
    if at is None:
        raise ScenarioFailed(f"{step.run} hadn't begun when {step.pool} was lost")
    scene.record.kills.append(KillRecord(lost_at, step.pool, step.how, step.run, at))

    def restored() -> float | None:
        events = scene.bucket.events(step.run)
        times = [epoch(event["time"]) for event in events if event["kind"] == "restore"]
        return next((moment for moment in times if moment > lost_at), None)

    moment = scene.wait_until(f"{step.run} restored", restored, step.timeout_s, poll_s=0.2)
    scene.wait_until(
        f"{step.run} trains again",
        lambda: training(scene, step.run, at + 1, moment),
        step.timeout_s,
        poll_s=0.2,
    )
    again_s = time.time() - lost_at
    words = f"restored after {moment - lost_at:.1f} s, beyond step {at} after {again_s:.1f} s"
    scene.note.text = f"{before} nodes; {words}"
    claim = f"{step.run} trains again after {step.pool} was {_HOW[step.how]}"
    scene.record.checks.append(Check(claim, scene.note.text))


def reboot(scene: Scene, step: steps.Reboot) -> None:
    """A new boot of the host has failed and said why; the record keeps it."""
    scene.forget_boots(step.node)
    # A second later, so that the login ends before the machine does.
    line = "sudo systemd-run --quiet --on-active=1 systemctl reboot"
    scene.shell.ssh(scene.hosts(step.node)[:1], line, timeout_s=_SSH_S, prints="")
    scene.lost_at[step.node] = time.time()

    def failed() -> dict[str, Any] | None:
        for status in scene.read_boots(step.node):
            if script_run(status) not in scene.past and status["state"] == "failed":
                return dict(status["stages"][-1])
        return None

    stage = scene.wait_until(f"a failed boot of {step.node}", failed, step.timeout_s)
    if not re.search(step.fails, stage["log_tail"]):
        raise ScenarioFailed(
            f"{step.node} failed in {stage['name']}, and not for {step.fails!r}: {stage['log_tail']}"
        )
    scene.note.text = f"in stage {stage['name']}: {stage['log_tail'].splitlines()[-1]}"


def stall(scene: Scene, step: steps.Stall) -> None:
    """The job's processes stand still, and their stream isn't done."""
    scene.wait_until(
        f"a shard of worker {step.worker}", lambda: bool(of_worker(scene, step.run, step.worker)), 300.0
    )
    lost_at = time.time()
    line = "sudo systemctl kill --signal=STOP tpu-job && sleep 2"  # what is on its way arrives
    scene.shell.ssh(scene.hosts(step.node)[:1], line, timeout_s=_SSH_S, prints="")
    found = of_worker(scene, step.run, step.worker)
    note = scene.bucket.json(f"extractions/{step.run}/checkpoints/checkpoint_worker_{step.worker}.json") or {}
    if len(found) >= note["shards"] - 1:
        raise ScenarioFailed(
            f"{step.node} has {len(found)} of {note['shards']} shards: it was too late to stall it"
        )
    record_fault(scene, step.node, "stall", step.run, lost_at)
    scene.stalled[step.node] = Stalled(step.run, step.worker, found)
    scene.note.text = f"at {len(found)} of {note['shards']} shards"


def wake(scene: Scene, step: steps.Wake) -> None:
    """Others are beyond the job that stood still; it continues, finds that out, and writes nothing."""
    if step.node not in scene.stalled:
        raise ScenarioFailed(f"{step.node} doesn't stand still; put a `stall` step in front")
    stalled = scene.stalled.pop(step.node)

    def beyond() -> bool:
        more = len(of_worker(scene, stalled.run, stalled.worker)) - len(stalled.shards)
        scene.note.text = f"{more} shards beyond it"
        return more >= step.beyond

    scene.wait_until(f"{step.beyond} shards beyond worker {stalled.worker}", beyond, step.timeout_s)
    before, since = of_worker(scene, stalled.run, stalled.worker), scene.control.requests(_NO_REQUEST)["next"]
    host = scene.hosts(step.node)[0]
    taken = f"stream {stalled.worker} of this run (over|is gone)"
    (output,) = scene.shell.ssh([host], _GO_ON, timeout_s=2 * _SSH_S, prints=taken)
    if "ExecMainStatus=2" not in output:
        raise ScenarioFailed(f"the job that was woken on {host} should have ended with 2: {output}")
    node = scene.node(step.node) or {"hosts": []}
    (address,) = (one["address"] for one in node["hosts"] if one["name"] == host)
    asked = [one for one in scene.control.requests(since)["requests"] if one["address"] == address]
    if not any("leases%2F" in one["path"] for one in asked):
        raise ScenarioFailed(f"{host} asked for no lease after it was woken: nothing shows that it woke up")
    # Words are of the host, not of the run; all else that it uploads is the run's.
    written = [
        one
        for one in asked
        if one["method_id"] == "storage.objects.insert"
        and one["status"] == 200
        and "name=" not in one["path"]
    ]
    now = of_worker(scene, stalled.run, stalled.worker)
    changed = [name for name, facts in before.items() if now.get(name) != facts]
    if written or changed:
        raise ScenarioFailed(
            f"{host} wrote {len(written)} objects of the run after it was woken; changed: {changed}"
        )
    ahead = len(before) - len(stalled.shards)
    scene.note.text = f"woken {ahead} shards late; {len(asked)} requests, no write that took effect; status 2"
    claim = "a worker that stood still while another took its stream over wrote nothing when it woke up"
    scene.record.checks.append(Check(claim, f"{step.node}: {scene.note.text}"))

"""Steps that leave a worker its machine and take something else: room on its disk, or time."""

from __future__ import annotations

import re
import time
from typing import Any, Literal

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.extracting import of_worker, record_fault
from rehearsal.scenario.record import Check, KillRecord, epoch, script_run
from rehearsal.scenario.scene import Scene, Stalled
from rehearsal.scenario.step import step
from rehearsal.scenario.watching import at_step, training

_SSH_S = 120.0
_HOW = {"notice": "preempted with notice", "power-loss": "lost without notice"}
_NO_REQUEST = 10**9  # selects none: the answer has only the next request's number
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


@step("{node}: fill its boot disk; wait: {more} more shards of worker {worker}")
def fill(scene: Scene, node: str, run: str, worker: int, more: int = 3, timeout_s: float = 300.0) -> None:
    """Fill the boot disk of a node's first host: a write must fail there, and its worker must continue."""
    (host, *_), lost_at = scene.hosts(node), time.time()
    scene.shell.ssh([host], _FILL, timeout_s=_SSH_S, prints="No space left on device")
    record_fault(scene, node, "disk", run, lost_at)
    before = len(of_worker(scene, run, worker))

    def went_on() -> bool:
        count = len(of_worker(scene, run, worker))
        scene.note.text = f"{before} shards, then {count}"
        return count >= before + more

    scene.wait_until(f"{more} more shards of worker {worker}", went_on, timeout_s)
    scene.record.checks.append(
        Check("a full disk stops no extraction that runs", f"{node}: {scene.note.text}")
    )


@step("lose all nodes of {pool}: {how}")
def lose(
    scene: Scene,
    pool: str,
    how: Literal["notice", "power-loss"],
    run: str = "",
    for_s: float = 300.0,
    timeout_s: float = 600.0,
) -> None:
    """Remove all nodes of a GKE node pool for `for_s` virtual seconds, with notice or without.

    With `run` it waits until that run, which trains there, has trained a step beyond where it was, and the
    report has the seconds that this took.
    """
    (names,) = [plane["nodes"] for plane in scene.control.status()["control_planes"].values()] or [{}]
    if not (before := names.get(pool, 0)):
        raise ScenarioFailed(f"no nodes of {pool} are in a cluster; the pools there: {names or 'none'}")
    at, lost_at = (at_step(scene, run, 0, 0) if run else None), time.time()
    scene.control.clusters("lose", pool=pool, notice=how == "notice", for_s=for_s)

    def gone() -> bool:
        (plane,) = scene.control.status()["control_planes"].values()
        return not plane["nodes"].get(pool, 0)

    scene.wait_until(f"the loss of {pool}", gone, timeout_s, poll_s=0.2)
    scene.note.text = f"{before} nodes"
    if not run:
        return
    if at is None:
        raise ScenarioFailed(f"{run} hadn't begun when {pool} was lost")
    scene.record.kills.append(KillRecord(lost_at, pool, how, run, at))

    def restored() -> float | None:
        events = scene.bucket.events(run)
        times = [epoch(event["time"]) for event in events if event["kind"] == "restore"]
        return next((moment for moment in times if moment > lost_at), None)

    moment = scene.wait_until(f"{run} restored", restored, timeout_s, poll_s=0.2)
    scene.wait_until(
        f"{run} trains again",
        lambda: training(scene, run, at + 1, moment),
        timeout_s,
        poll_s=0.2,
    )
    again_s = time.time() - lost_at
    words = f"restored after {moment - lost_at:.1f} s, beyond step {at} after {again_s:.1f} s"
    scene.note.text = f"{before} nodes; {words}"
    claim = f"{run} trains again after {pool} was {_HOW[how]}"
    scene.record.checks.append(Check(claim, scene.note.text))


@step("{instance}: pull its plug; wait: it runs again")
def pull(scene: Scene, instance: str, timeout_s: float = 180.0) -> None:
    """Cut the power of a Compute Engine instance, and wait until Google has started it again."""
    if scene.instance(instance) is None:
        raise ScenarioFailed(f"there is no instance {instance}")
    scene.control.cut_power(instance)
    lost_at = time.time()

    def runs() -> bool:
        now = scene.instance(instance)
        scene.note.text = f"it is {now['state'] if now else 'gone'}"
        return now is not None and now["state"] == "RUNNING"

    scene.wait_until(f"{instance} running", runs, timeout_s)
    scene.note.text = f"started again after {time.time() - lost_at:.1f} s"


@step("{node}: reboot, which must fail", check=lambda reboot: re.compile(reboot["fails"]))
def reboot(scene: Scene, node: str, fails: str, timeout_s: float = 120.0) -> None:
    """Reboot a node's first host, and wait until its boot has failed with a log that holds a match."""
    scene.forget_boots(node)
    # A second later, so that the login ends before the machine does.
    line = "sudo systemd-run --quiet --on-active=1 systemctl reboot"
    scene.shell.ssh(scene.hosts(node)[:1], line, timeout_s=_SSH_S, prints="")
    scene.lost_at[node] = time.time()

    def failed() -> dict[str, Any] | None:
        for status in scene.read_boots(node):
            if script_run(status) not in scene.past and status["state"] == "failed":
                return dict(status["stages"][-1])
        return None

    stage = scene.wait_until(f"a failed boot of {node}", failed, timeout_s)
    if not re.search(fails, stage["log_tail"]):
        raise ScenarioFailed(f"{node} failed in {stage['name']}, and not for {fails!r}: {stage['log_tail']}")
    scene.note.text = f"in stage {stage['name']}: {stage['log_tail'].splitlines()[-1]}"


@step("{node}: stop its job in the middle of worker {worker}'s stream")
def stall(scene: Scene, node: str, run: str, worker: int) -> None:
    """Stop a node's job (SIGSTOP), on its first host, in the middle of its worker's stream."""
    scene.wait_until(f"a shard of worker {worker}", lambda: bool(of_worker(scene, run, worker)), 300.0)
    lost_at = time.time()
    line = "sudo systemctl kill --signal=STOP tpu-job && sleep 2"  # what is on its way arrives
    scene.shell.ssh(scene.hosts(node)[:1], line, timeout_s=_SSH_S, prints="")
    committed = of_worker(scene, run, worker)
    note = scene.bucket.json(f"extractions/{run}/checkpoints/checkpoint_worker_{worker}.json") or {}
    if len(committed) >= note["shards"] - 1:
        raise ScenarioFailed(
            f"{node} has {len(committed)} of {note['shards']} shards: it was too late to stall it"
        )
    record_fault(scene, node, "stall", run, lost_at)
    scene.stalled[node] = Stalled(run, worker, committed)
    scene.note.text = f"at {len(committed)} of {note['shards']} shards"


@step("{node}: continue its job once other workers are {beyond} shards beyond it")
def wake(scene: Scene, node: str, beyond: int = 2, timeout_s: float = 300.0) -> None:
    """Continue a stalled job once others are so many shards ahead; it must write nothing, and end."""
    if node not in scene.stalled:
        raise ScenarioFailed(f"{node} doesn't stand still; put a `stall` step in front")
    stalled = scene.stalled.pop(node)

    def others_ahead() -> bool:
        more = len(of_worker(scene, stalled.run, stalled.worker)) - len(stalled.shards)
        scene.note.text = f"{more} shards beyond it"
        return more >= beyond

    scene.wait_until(f"{beyond} shards beyond worker {stalled.worker}", others_ahead, timeout_s)
    before, since = of_worker(scene, stalled.run, stalled.worker), scene.control.requests(_NO_REQUEST)["next"]
    host = scene.hosts(node)[0]
    taken = f"stream {stalled.worker} of this run (over|is gone)"
    (output,) = scene.shell.ssh([host], _GO_ON, timeout_s=2 * _SSH_S, prints=taken)
    if "ExecMainStatus=2" not in output:
        raise ScenarioFailed(f"the job that was woken on {host} should have ended with 2: {output}")
    hosts = (scene.node(node) or {"hosts": []})["hosts"]
    (address,) = (described["address"] for described in hosts if described["name"] == host)
    requests = [
        request for request in scene.control.requests(since)["requests"] if request["address"] == address
    ]
    if not any("leases%2F" in request["path"] for request in requests):
        raise ScenarioFailed(f"{host} sent no request for its lease after SIGCONT: did it continue?")
    # Heartbeats belong to the host, all other uploads to its run.
    written = [
        request
        for request in requests
        if request["method_id"] == "storage.objects.insert"
        and request["status"] == 200
        and "name=" not in request["path"]
    ]
    now = of_worker(scene, stalled.run, stalled.worker)
    changed = [name for name, facts in before.items() if now.get(name) != facts]
    if written or changed:
        raise ScenarioFailed(
            f"{host} wrote {len(written)} objects of the run after it was woken; changed: {changed}"
        )
    ahead = len(before) - len(stalled.shards)
    scene.note.text = (
        f"woken {ahead} shards late; {len(requests)} requests, no write that took effect; status 2"
    )
    claim = "a worker that stood still while another took its stream over wrote nothing when it woke up"
    scene.record.checks.append(Check(claim, f"{node}: {scene.note.text}"))

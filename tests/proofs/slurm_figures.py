"""Times of a Slurm cluster, five of each, in booted machines: a slice for a job, a job, an end, a loss.

The steps are a scenario's, run by `measure`; what they saw is in figures.json beside the scenario's report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import described, spread
from rehearsal.scenario import steps
from rehearsal.scenario.parts import LOGIN, SLURM, SLURM_UP, ZONE
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step

ROUNDS = 5
SUSPEND_S = 30
"""slurm:suspendTimeS of the shared settings."""
_POLL_S = 0.2
_LIMIT_S = 600.0


class _Seen(threading.Thread):
    """Times at which the cloud first showed something of the only slice's node, by what it was."""

    def __init__(self, scene: Scene):
        super().__init__(daemon=True)
        self._scene, self._over = scene, threading.Event()
        self.at_s: dict[str, float] = {}

    def run(self) -> None:
        while not self._over.wait(_POLL_S):
            nodes = self._scene.control.status()["nodes"]
            state = str(nodes[0]["state"]) if nodes else "gone"
            self.at_s.setdefault(state if state == "gone" or self.at_s else f"first {state}", time.time())

    def __enter__(self) -> _Seen:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def _login(scene: Scene, line: str) -> str:
    return scene.shell.ssh([LOGIN], line, timeout_s=_LIMIT_S, prints="")[0].strip()


def _lost(scene: Scene, job: str, host: str) -> tuple[float, float, float]:
    """Return when slurmctld knew that a host is lost, had queued its job again, and had it wait for hosts."""
    state = f"sinfo --noheader --nodes={host} --format=%T"
    line = f"""
        until squeue --noheader --jobs={job} --format=%T | grep -q PENDING; do
          [ -n "$seen" ] || ! {state} | grep -q down || seen=$(date +%s.%N)
          [ -n "$again" ] || ! scontrol show job {job} | grep -q Restarts=1 || again=$(date +%s.%N)
        done
        now=$(date +%s.%N); echo "${{seen:-$now}} ${{again:-$now}} $now"
    """
    seen_s, queued_s, waits_s = map(float, _login(scene, line).split())
    return seen_s, queued_s, waits_s


def _submit(scene: Scene, then: str) -> tuple[str, float]:
    """Submit a job that notes when it begins and ends on its first host; return id and time."""
    script = f"date +%s.%N >\\$HOME/begun-\\$SLURM_JOB_ID; {then}; date +%s.%N >\\$HOME/ended-\\$SLURM_JOB_ID"
    line = f'date +%s.%N; sbatch --parsable --output=/dev/null --wrap "{script}"'
    at_s, job = _login(scene, line).split()
    return job, float(at_s)


def _noted(scene: Scene, what: str, job: str) -> float:
    """Return when a job noted something, once it has."""
    name = f"$HOME/{what}-{job}"
    return float(_login(scene, f"until [ -s {name} ]; do sleep 0.2; done; cat {name}"))


def _until(scene: Scene, what: str, holds: Callable[[], object]) -> None:
    scene.wait_until(what, lambda: bool(holds()), _LIMIT_S, _POLL_S)


@step("round {number}: a slice from nothing, a job on it, its end", account="ml-engineer")
def comes_and_goes(scene: Scene, number: int) -> None:
    """Measure a first job, a second one on the same hosts, and how long the idle slice stays."""
    with _Seen(scene) as seen:
        job, submitted_s = _submit(scene, "true")
        _note(scene, "from nothing", _from_nothing(seen, submitted_s, _noted(scene, "begun", job)))
        _noted(scene, "ended", job)
        _login(scene, 'until [ -z "$(squeue --noheader)" ]; do sleep 0.2; done')
        job, submitted_s = _submit(scene, "true")
        _note(scene, "nodes up", {"submit to running": _noted(scene, "begun", job) - submitted_s})
        ended_s, seen.at_s = _noted(scene, "ended", job), {"READY": 0.0}
        _until(scene, "the slice is gone", lambda: "gone" in seen.at_s)
        gone_s = seen.at_s["gone"] - ended_s
        _note(scene, "idle", {"idle to gone": gone_s, "beyond SuspendTime": gone_s - SUSPEND_S})


def _from_nothing(seen: _Seen, submitted_s: float, begun_s: float) -> dict[str, float]:
    """Return the parts of the time until a job runs: Google's own is that between request and READY."""
    created_s = min(at_s for state, at_s in seen.at_s.items() if state != "first gone" and state != "gone")
    ready_s = seen.at_s["READY"]
    return {
        "submit to running": begun_s - submitted_s, "submit to request": created_s - submitted_s,
        "Google's own": ready_s - created_s, "READY to running": begun_s - ready_s,
        "beyond Google's own": begun_s - submitted_s - (ready_s - created_s),
    }  # fmt: skip


@step("round {number}: a host is lost under a job", account="ml-engineer")
def lost(scene: Scene, number: int) -> None:
    """Cut the power of a host of a running job, and measure until slurmctld has queued the job again."""
    with _Seen(scene) as seen:
        job, submitted_s = _submit(scene, "sleep 900")
        _note(scene, "from nothing", _from_nothing(seen, submitted_s, _noted(scene, "begun", job)))
        slice_ = _login(scene, f"squeue --noheader --jobs={job} --format=%N").partition("-w")[0]
        (node,) = scene.control.status()["nodes"]
        cut_s = time.time()
        scene.control.cut_power(node["hosts"][2]["name"])
        seen_s, queued_s, waits_s = _lost(scene, job, f"{slice_}-w2")
        times_s = {"seen to requeued": queued_s - seen_s, "seen to waiting": waits_s - seen_s}
        _note(scene, "lost", {**times_s, "lost to seen": seen_s - cut_s})
        _login(scene, f"scancel {job}")
        seen.at_s = {"READY": 0.0}
        _until(scene, "the slice is gone", lambda: "gone" in seen.at_s)


def _note(scene: Scene, kind: str, times_s: dict[str, float]) -> None:
    path = scene.shell.logs.parent / "figures.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    rows.append(
        {"kind": kind, "load": os.getloadavg()[0], **{key: round(value, 3) for key, value in times_s.items()}}
    )
    path.write_text(json.dumps(rows, indent=1) + "\n")
    scene.note.text = ", ".join(f"{key} {value:.1f} s" for key, value in times_s.items())
    scene.print(f"      {kind}: {scene.note.text}")


SCENARIO = Scenario(
    clock=20,
    settings={
        **SLURM,
        "tpu:zones": [ZONE],
        "slurm:nodesets": [{
            "name": "tpu", "acceleratorType": "v6e-16", "zone": ZONE, "spot": True,
            "nodeCountDynamicMax": 12,  # one slice at a time: the next has SuspendTimeout behind it
        }],
    },
    steps=(
        *SLURM_UP,
        *(part(number) for number in range(1, ROUNDS + 1) for part in (comes_and_goes, lost)),
        steps.destroy("slurm", refused="protected"),
    ),
)  # fmt: skip


def measure(folder: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Run the scenario; return least, middle and most of each time, with the machine's load."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figures.json").unlink(missing_ok=True)
    line = [sys.executable, "-m", "cli", "rehearsal", "run", __file__, "--report", str(folder)]
    done = subprocess.run(line, check=False)
    rows: list[dict[str, Any]] = json.loads((folder / "figures.json").read_text())
    times: dict[str, Any] = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        for key in own[0].keys() - {"kind", "load"}:
            times[f"{kind}: {key}"] = spread([row[key] for row in own])
            report(f"{kind}: {key}: {times[f'{kind}: {key}']}")
    load = spread([row["load"] for row in rows])
    return {"passed": done.returncode == 0, "times_s": times, "load": load, "on": described(())}

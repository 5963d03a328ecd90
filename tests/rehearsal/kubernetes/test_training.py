"""The trainer in a JobSet: preempted in the middle, it ends where an undisturbed run ends, bit for bit."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from infra.layers.queue.jobs.jobset import Job, jobset
from infra.layers.queue.kueue import Team
from infra.settings.sources import ROOT
from tests.rehearsal.kubernetes.lab import HOSTS, INSIDE, MACHINE, Lab

TEAM, STEPS = Team("training", "training"), 40
WORKLOAD = str(Path(sys.executable).parent / "workload")


@pytest.fixture(scope="module", name="queue")
def _queue(lab: Lab) -> Lab:
    # Its pods see this machine.
    INSIDE.submit(lab.queue, {"run-0": {}, "run-1": {}}, {TEAM: []}, see=True).result()
    return lab


def submit(lab: Lab, name: str, shared: Path) -> Job:
    """A job whose pods see the checkout, the Python and a folder that all of them share."""
    train = [WORKLOAD, "train", "tiny.toml", "--dir", str(shared / "results"), "--name", name]
    changes = ["--set", f"train.steps={STEPS}", "--set", "checkpoint.every_steps=5"]
    line = [WORKLOAD, "launch", "--", *train, *changes]
    environment = {"DATA_DIR": str(shared / "tokens"), "JAX_PLATFORMS": "cpu", "HOME": "/tmp", **{
        key: os.environ[key] for key in os.environ if key.startswith("JAX_")}}  # fmt: skip
    entry = Job(
        name,
        TEAM,
        MACHINE,
        line,
        topology="4x4",
        hosts=HOSTS,
        chips_per_host=4,
        environment=environment,
        restarts=0,
    )
    manifest = jobset(entry)
    pod: dict[str, Any] = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    cache = os.environ["JAX_COMPILATION_CACHE_DIR"]
    paths = {str(Path(path).resolve()) for path in (ROOT, ROOT / ".venv", sys.base_prefix, shared, cache)}
    pod["volumes"] = [{"name": f"v{i}", "hostPath": {"path": path}} for i, path in enumerate(sorted(paths))]
    worker = pod["containers"][0]
    worker["volumeMounts"] = [{"name": f"v{i}", "mountPath": path} for i, path in enumerate(sorted(paths))]
    worker["workingDir"] = str(ROOT.resolve())
    lab.api.create(manifest)
    return entry


def results(shared: Path, name: str) -> Path:
    return shared / "results" / "runs" / name


def losses(shared: Path, name: str) -> dict[int, str]:
    """Step → loss to the last bit, as saved."""
    answer: dict[int, str] = {}
    for path in results(shared, name).glob("metrics/*.jsonl"):
        answer |= {
            entry["step"]: entry["loss_hex"] for entry in map(json.loads, path.read_text().splitlines())
        }
    return answer


def last(shared: Path, name: str) -> int:
    """The newest step that is saved."""
    return max(losses(shared, name), default=0)


def logs(lab: Lab) -> str:
    return "\n".join(
        path.read_text(errors="replace")[-1500:]
        for path in lab.control_plane.folder.glob("agent/pods/*/worker.log")
    )


@pytest.mark.slow
def test_a_preempted_job_ends_where_an_undisturbed_one_ends(queue: Lab, shared: Path) -> None:
    def completed(work: Job) -> bool:
        assert queue.ended(work) != "Failed", logs(queue)
        return queue.ended(work) == "Completed"

    still = submit(queue, "still", shared)
    queue.until(lambda: completed(still), "the undisturbed run")
    preempted = submit(queue, "preempted", shared)
    queue.until(lambda: last(shared, "preempted") >= 10, "its 10th step")
    before = {pod["spec"]["nodeName"] for pod in queue.pods(preempted)}
    assert not completed(preempted), "it is in the middle"
    begun = time.monotonic()
    queue.preempt(*before)
    saved = last(shared, "preempted")
    assert 10 <= saved < STEPS
    queue.until(lambda: last(shared, "preempted") > saved, "training again")
    print(f"preempted after step {saved}; five steps later {time.monotonic() - begun:.1f} s after the notice")
    queue.until(lambda: completed(preempted), "the preempted run")
    after = {pod["spec"]["nodeName"] for pod in queue.pods(preempted)}
    assert not after & before
    assert len(losses(shared, "still")) == STEPS
    assert losses(shared, "preempted") == losses(shared, "still")
    finals = [(results(shared, name) / "final.json").read_text() for name in ("still", "preempted")]
    assert finals[0] == finals[1], "parameters and optimizer state, too"
    status = queue.status(preempted)
    assert (status["restarts"], status.get("restartsCountTowardsMax", 0)) == (1, 0)

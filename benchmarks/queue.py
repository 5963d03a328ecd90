"""A thousand jobs of eight teams over 64 slices, by the real Kueue and JobSet: order, quota, latency, memory.

Everything is real but the machines: kwok plays the kubelets of the pools' nodes, so that a pod is Running at
once and Succeeded after a time that was drawn for its job. Jobs are rendered as `tpu job submit` does it.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import admissions
from benchmarks.admissions import FINISHED, HOLDING, History
from benchmarks.kwok import RUN_FOR, Kwok
from benchmarks.machine import described
from infra.layers.queue import namespace
from infra.layers.queue.jobs.jobset import Job, jobset
from infra.layers.queue.kueue import Team, objects
from infra.layers.queue.namespace import Volumes
from infra.layers.queue.versions import JOBSET, KUEUE
from rehearsal.kubernetes.plane.nodes import nodes
from rehearsal.kubernetes.plane.programs import program
from tests.rehearsal.kubernetes.lab import HOSTS, MACHINE, WORKLOAD, Lab, inside, output, pool

SEED, TEAMS = 20261124, 8
# Of a zone of their own, so that no other nodes of the cluster are of their flavor.
ZONE = "us-east1-d"
# How many of each, in a hundred.
_SLICES = {1: 70, 2: 20, 4: 8, 8: 2}
_PRIORITIES = {"low": 50, "medium": 35, "high": 15}
_RUN_S = (5, 15)
_SLACK_S = 2.0
_WATCH_S, _LIMIT_S, _PROGRESS_S = 7200, 3600.0, 15.0
_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kueue", "jobset", "kwok")


@dataclass(frozen=True)
class Drawn:
    """A job, and how long its pods run."""

    job: Job
    run_s: int


def drawn(
    count: int, pools: int, run_s: tuple[int, int] = _RUN_S, seed: int = SEED, name: str = "job"
) -> list[Drawn]:
    """Jobs in the order of their submission; none is larger than all pools."""
    rng = random.Random(seed)
    sizes = {size: weight for size, weight in _SLICES.items() if size <= pools}

    def draw(number: int) -> Drawn:
        (slices,) = rng.choices(list(sizes), list(sizes.values()))
        (priority,) = rng.choices(list(_PRIORITIES), list(_PRIORITIES.values()))
        team = rng.choice(teams())
        job = Job(
            f"{name}-{number:04}", team, MACHINE, ["train"], topology="4x4", hosts=HOSTS, chips_per_host=4,
            slices=slices, priority=priority,
        )  # fmt: skip
        return Drawn(job, rng.randint(*run_s))

    return [draw(number) for number in range(count)]


def teams() -> Sequence[Team]:
    """Teams that submit jobs."""
    return [Team(f"team-{number}", f"team-{number}") for number in range(TEAMS)]


class Queue:
    """The pools, queues and teams on a cluster, and what was observed of jobs there."""

    def __init__(self, lab: Lab, pools: int, folder: Path, of: Sequence[Team] = ()):
        """In the lab's network, as all that follows. `of`: its teams; `teams`, unless given."""
        self._lab, self.pools, self._teams = lab, pools, of or teams()
        self.history = History(HOSTS)
        self.pool_of: dict[str, str] = {}
        self._kwok = Kwok(lab.api, folder, lab.control_plane.kubeconfig)
        self._kwok.start()
        names = [f"pool-{number:02}" for number in range(pools)]
        for name in names:
            made = list(nodes("tpu", pool(name, locations=[ZONE]), HOSTS))
            self._kwok.add(made)
            self.pool_of |= {node["metadata"]["name"]: name for node in made}
        self._objects = list(objects([output(name, zone=ZONE) for name in names], teams=self._teams))
        lab.api.apply_all(self._objects, "tests")
        for team in self._teams:
            lab.api.apply_all(list(namespace.objects(team, [], "trainer", None, Volumes("bucket"))), "tests")
        lab.until(self._is_ready, "the nodes")
        for version, kind in (WORKLOAD, ("v1", "Pod")):
            threading.Thread(target=self._watch, args=(version, kind), daemon=True).start()

    def use(self, strategy: str) -> None:
        """Set a queueing strategy and begin a new history."""
        queue = self._objects[-1]
        self._lab.api.apply({**queue, "spec": {**queue["spec"], "queueingStrategy": strategy}}, "tests")
        self.history = History(HOSTS)

    def restarts(self) -> int:
        """Return the number of restarts of the controllers."""
        return sum(
            container_statuse["restartCount"]
            for space in ("kueue-system", "jobset-system")
            for pod in self._lab.api.list("v1", "Pod", space)
            for container_statuse in pod["status"]["containerStatuses"]
        )

    def _is_ready(self) -> bool:
        ready = {
            item["metadata"]["name"]
            for item in self._lab.api.list("v1", "Node")
            for entry in item["status"].get("conditions", ())
            if (entry["type"], entry["status"]) == ("Ready", "True")
        }
        return self.pool_of.keys() <= ready

    def _watch(self, version: str, kind: str) -> None:
        for event, item in self._lab.api.watch(version, kind, _WATCH_S):
            take = self.history.pod if kind == "Pod" else self.history.workload
            take(event, item, time.monotonic())

    def close(self) -> None:
        """End what stands for the kubelets."""
        self._kwok.stop()

    def submit(self, jobs: Sequence[Drawn]) -> None:
        """All of them, the teams at the same time."""

        def submit_of(team: Team) -> None:
            api = self._lab.control_plane.client(self._lab.control_plane.admin)
            for job in jobs:
                if job.job.team == team:
                    api.create(_manifest(job))

        with ThreadPoolExecutor(TEAMS) as pool:
            list(pool.map(submit_of, self._teams))

    def wait(
        self, jobs: int, limit_s: float = _LIMIT_S, each_time: Callable[[], None] = lambda: None
    ) -> None:
        """Until all have finished; `each_time` is called now and then."""
        begun = printed = time.monotonic()
        while self.history.count(FINISHED) < jobs:
            now = time.monotonic()
            if now - begun > limit_s:
                raise SystemExit(f"not within {limit_s:.0f} s:\n{self._lab.state()[-4000:]}")
            if now - printed > _PROGRESS_S:
                printed = now
                each_time()
                held, done = self.history.count(HOLDING), self.history.count(FINISHED)
                print(f"{now - begun:.0f} s: {held} hold quota, {done} finished", file=sys.stderr, flush=True)
            time.sleep(0.2)


def _manifest(drawn: Drawn) -> dict[str, Any]:
    made = jobset(drawn.job)
    for part in made["spec"]["replicatedJobs"]:
        part["template"]["spec"]["template"]["metadata"]["annotations"][RUN_FOR] = f"{drawn.run_s}s"
    return made


def measure(jobs: int, pools: int, strategy: str) -> dict[str, Any]:
    """All of it in a network namespace of its own."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        return inside().submit(_measure, jobs, pools, strategy, Path(folder)).result()


def _measure(jobs: int, pools: int, strategy: str, folder: Path) -> dict[str, Any]:
    with closing(Lab(folder / "cluster")) as lab:
        queue = Queue(lab, pools, folder / "kwok")
        queue.use(strategy)
        mix = drawn(jobs, pools)
        meter = _Meter()
        begun = time.monotonic()
        queue.submit(mix)
        submitted_s = time.monotonic() - begun
        queue.wait(jobs, each_time=meter.look)
        total_s = time.monotonic() - begun
        meter.look()
        restarts = queue.restarts()
        queue.close()
    used_s = sum(item.run_s * item.job.slices for item in mix)
    return {
        "jobs": jobs,
        "pools": pools,
        "slices": sum(item.job.slices for item in mix),
        "pods": sum(item.job.slices for item in mix) * HOSTS,
        "submitted_s": submitted_s,
        "total_s": total_s,
        "least_s": used_s / pools,
        **judged(queue),
        "controllers_restarted": restarts,
        "peak_mib": meter.peak_mib(),
        "idle_mib": meter.idle_mib,
        "processor_s": meter.processor_s(),
        "what": f"{jobs} jobs of {TEAMS} teams over {pools} pools of v6e-16, {strategy}, seed {SEED}",
        "on": described(["requests"]) | {"peers": {"kueue": f"Kueue {KUEUE}", "jobset": f"JobSet {JOBSET}"}},
    }


def judged(queue: Queue) -> dict[str, Any]:
    """Latencies, and whatever wasn't right."""
    history = queue.history
    overtaken = list(admissions.overtakings(history, queue.pools))
    alike = [item for item in overtaken if item.job.slices == item.by.slices]
    out_of_order = partial(admissions.out_of_order, slack_s=_SLACK_S)
    preempted = list(admissions.preemptions(history))
    return {
        "waited_s": _spread(admissions.waits_s(history)),
        "started_s": _spread(admissions.starts_s(history)),
        "admissions": sum(change.state == HOLDING for change in history.changes),
        "preemptions": len(preempted),
        "admitted_again": sum(change.state == HOLDING for change in history.changes) - len(history.jobs),
        "preempted_by_no_higher": sum(by is None or by.priority <= job.priority for job, by in preempted),
        "out_of_order": out_of_order(alike),
        "out_of_order_any_size": out_of_order(overtaken),
        "most_held": admissions.most_held(history),
        "collisions": len(list(admissions.collisions(history, queue.pool_of))),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "p95": quantiles(values, n=20)[-1], "longest": max(values)}


class _Meter:
    """Processor time and memory of this process's descendants, also of those that were restarted."""

    def __init__(self) -> None:
        self._files = {os.stat(program(name)).st_ino: name for name in _PROGRAMS}
        self._descendants: dict[tuple[str, str], tuple[float, float]] = {}
        self.look()
        self.idle_mib = self.peak_mib()
        self._before_s = self._processor_s()

    def look(self) -> None:
        """Note each process's peak of resident memory in MiB, and its CPU seconds, so far."""
        tick = os.sysconf("SC_CLK_TCK")
        for process in _descendants(os.getpid()):
            try:
                name = self._files.get(os.stat(process / "exe").st_ino)
                status, stat = (process / "status").read_text(), (process / "stat").read_text()
            except OSError:
                continue  # it has ended
            if name is not None:
                times = stat.rpartition(")")[2].split()[11:13]
                peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
                self._descendants[name, process.name] = (peak, sum(map(int, times)) / tick)

    def peak_mib(self) -> dict[str, float]:
        """By program."""
        return {name: max(self._of(name, 0)) for name in _PROGRAMS}

    def processor_s(self) -> dict[str, float]:
        """By program, since the meter was made."""
        return {name: seconds - self._before_s[name] for name, seconds in self._processor_s().items()}

    def _processor_s(self) -> dict[str, float]:
        return {name: sum(self._of(name, 1)) for name in _PROGRAMS}

    def _of(self, name: str, which: int) -> list[float]:
        return [entry[which] for (item, _), entry in self._descendants.items() if item == name]


def _descendants(pid: int) -> Iterator[Path]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            yield Path(f"/proc/{child}")
            yield from _descendants(int(child))

"""Slurm, the fleet and the daemon as a state machine: jobs, losses, and a daemon that dies at any action."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleet.adhoc import OWNER, PHASE, Phase
from slurm.decide import FAILED, Action, End, Slice, SliceStatus, State, Update, Want, World, decide
from slurm.nodes import SlurmNode

OURS = {"who": "controller@p.iam.gserviceaccount.com", "from": "slurm dev"}
SLICES = tuple(
    Slice(name, (f"{name}-w0", f"{name}-w1"), {"name": name, "run": "slurmd"}, static=name == "tpu-0")
    for name in ("tpu-0", "tpu-1", "tpu-2")
)
NAMES = st.sampled_from([slice_.name for slice_ in SLICES])
WORKERS = st.sampled_from([0, 1])


@dataclass
class Host:
    """A node of Slurm; `job` has it; `booted`: the instance that it was registered by."""

    base: str = "IDLE"
    flags: set[str] = field(default_factory=lambda: {"POWERED_DOWN"})
    reason: str = ""
    job: int = 0
    booted: int = 0
    before: int = 0  # the newest instance when it was before for: only a later one answers


@dataclass
class Cloud:
    """Records and nodes at Google."""

    records: dict[str, Phase] = field(default_factory=dict)
    nodes: dict[str, tuple[int, str]] = field(default_factory=dict)  # instance, state
    instances: int = 0
    refused: set[str] = field(default_factory=set)


class Cluster(RuleBasedStateMachine):
    """Slurm as it was seen to act (tests/slurm/outputs/README.md), in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts = {host: Host() for slice_ in SLICES for host in slice_.hosts}
        self.cloud, self.jobs = Cloud(), 0
        self.failed = set[str]()

    def of(self, name: str) -> list[Host]:
        return [self.hosts[f"{name}-w{worker}"] for worker in (0, 1)]

    def seen_nodes(self) -> dict[str, SlurmNode]:
        return {
            name: SlurmNode(name, host.base, frozenset({"CLOUD", *host.flags}), host.reason)
            for name, host in self.hosts.items()
        }

    # Slurm

    @rule(name=NAMES)
    def submit(self, name: str) -> None:
        barred = {"POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "DRAIN"}
        if any(host.base != "IDLE" or host.flags & barred for host in self.of(name)):
            return
        self.jobs += 1
        for host in self.of(name):
            host.base, host.job = "ALLOCATED", self.jobs

    @rule()
    def power(self) -> None:
        """Slurm's loop: what is before for is powered up, what is marked and idle goes down."""
        for name, host in self.hosts.items():
            if "POWERED_DOWN" in host.flags and (host.base == "ALLOCATED" or "POWER_UP" in host.flags):
                host.flags = {"POWERING_UP"}
                host.before = self.cloud.nodes.get(name.rpartition("-w")[0], (0, ""))[0]
            elif "POWER_DOWN" in host.flags and not host.job:
                self._suspend(host)

    @staticmethod
    def _suspend(host: Host) -> None:
        host.base, host.flags, host.booted = "IDLE", {"POWERING_DOWN"}, 0

    @rule(name=NAMES, worker=WORKERS)
    def suspend_timeout(self, name: str, worker: int) -> None:
        host = self.of(name)[worker]
        if "POWERING_DOWN" in host.flags:
            host.flags = {"POWERED_DOWN"} | (host.flags & {"DRAIN"})

    @rule(name=NAMES, worker=WORKERS)
    def idle_too_long(self, name: str, worker: int) -> None:
        host = self.of(name)[worker]
        up = not host.flags & {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_UP"}
        if up and not host.job and not (name == "tpu-0" and host.base == "IDLE"):
            self._suspend(host)

    @rule(name=NAMES, worker=WORKERS)
    def job_leaves(self, name: str, worker: int) -> None:
        """The batch host may be COMPLETING for long when its neighbours are free."""
        host = self.of(name)[worker]
        if host.job and not host.flags & {"POWERING_UP", "POWERED_DOWN"}:
            self._free(host)

    @staticmethod
    def _free(host: Host) -> None:
        host.job = 0
        host.base = "IDLE" if host.base == "ALLOCATED" else host.base

    @rule(name=NAMES, worker=WORKERS)
    def resume_timeout(self, name: str, worker: int) -> None:
        host = self.of(name)[worker]
        if "POWERING_UP" in host.flags:
            self._requeue(host.job)
            host.base, host.flags, host.reason = "DOWN", {"POWERED_DOWN"}, "ResumeTimeout reached"

    def _requeue(self, job: int) -> None:
        for host in self.hosts.values():
            if job and host.job == job:
                self._free(host)

    @rule(name=NAMES, worker=WORKERS)
    def host_registers(self, name: str, worker: int) -> None:
        host, (instance, state) = self.of(name)[worker], self.cloud.nodes.get(name, (0, ""))
        if "POWERING_UP" in host.flags and state == "READY" and instance > host.before:
            host.flags, host.booted = host.flags & {"DRAIN", "POWER_DOWN"}, instance

    @rule(name=NAMES, worker=WORKERS)
    def not_responding(self, name: str, worker: int) -> None:
        host, (instance, state) = self.of(name)[worker], self.cloud.nodes.get(name, (0, ""))
        if host.booted and (instance != host.booted or state != "READY"):
            self._requeue(host.job)
            host.base, host.reason, host.booted = "DOWN", "Not responding", 0

    @rule(name=NAMES)
    def person_resumes(self, name: str) -> None:
        for host in self.of(name):
            self._update(host, State.RESUME, "")
        self.failed.discard(name)

    # Google, and the fleet's controller

    @rule(name=NAMES)
    def preempted(self, name: str) -> None:
        if name in self.cloud.nodes:
            self.cloud.nodes[name] = (self.cloud.nodes[name][0], "PREEMPTED")

    @rule(name=NAMES, refuses=st.booleans())
    def capacity(self, name: str, refuses: bool) -> None:
        (self.cloud.refused.add if refuses else self.cloud.refused.discard)(name)

    @rule(name=NAMES)
    def boot_fails(self, name: str) -> None:
        if name in self.cloud.nodes and not any(host.booted for host in self.of(name)):
            self.failed.add(name)

    @rule()
    def person_ends_a_slice(self) -> None:
        for name in [name for name, phase in self.cloud.records.items() if phase is Phase.WANTED][:1]:
            self.cloud.records[name] = Phase.ENDED
            self.cloud.nodes.pop(name, None)

    @rule()
    def fleet_acts(self) -> None:
        for name, phase in [*self.cloud.records.items()]:
            if phase is Phase.WANTED and name not in self.cloud.nodes and name not in self.cloud.refused:
                self.cloud.instances += 1
                self.cloud.nodes[name] = (self.cloud.instances, "READY")
            elif phase is Phase.ENDING:
                instance, state = self.cloud.nodes.pop(name, (0, ""))
                for host in self.of(name):
                    running = host.job and host.booted == instance and state == "READY"
                    assert not running, f"{name} is deleted under a job"
                self.cloud.records[name] = Phase.ENDED
                self.failed.discard(name)

    # The daemon

    def world(self) -> World:
        records = {
            slice_.name: {**slice_.item, PHASE: phase, OWNER: OURS}
            for slice_ in SLICES
            if (phase := self.cloud.records.get(slice_.name, Phase.ENDED)) is not Phase.ENDED
        }
        seen = {}
        for name in records:
            instance, state = self.cloud.nodes.get(name, (0, ""))
            seen[name] = SliceStatus(
                bool(instance), state == "READY", "Google says PREEMPTED" if state == "PREEMPTED" else "",
                "its boot failed" if name in self.failed else "",
            )  # fmt: skip
        refused = dict.fromkeys(self.cloud.refused, "no capacity")
        return World(self.seen_nodes(), records, set(records), {}, seen, refused)

    @rule(dies_before=st.one_of(st.none(), st.integers(0, 3)))
    def look(self, dies_before: int | None) -> None:
        """Read, decide and act; the daemon may be killed before any of the actions."""
        nodes = self.seen_nodes()
        actions = decide(SLICES, self.world())
        done = actions if dies_before is None else actions[:dies_before]
        for action in done:
            self._do(action, nodes)
        if dies_before is None:
            for slice_ in SLICES:
                if all(nodes[host].out for host in slice_.hosts):
                    kept = self.cloud.records.get(slice_.name) is Phase.WANTED
                    assert not kept, f"{slice_.name} is kept though all its hosts are given up"

    def _do(self, action: Action, nodes: dict[str, SlurmNode]) -> None:
        match action:
            case Want(name):
                assert any(nodes[host].powering_up for host in (f"{name}-w0", f"{name}-w1")), "nobody asks"
                assert self.cloud.records.get(name, Phase.ENDED) is Phase.ENDED
                self.cloud.records[name] = Phase.WANTED
            case End(name):
                assert self.cloud.records[name] is Phase.WANTED
                self.cloud.records[name] = Phase.ENDING
            case Update(hosts, state, reason):
                for host in hosts:
                    self._update(self.hosts[host], state, reason)

    def _update(self, host: Host, state: State, reason: str) -> None:
        match state:
            case State.FORCE:
                self._requeue(host.job)
                host.base, host.flags, host.reason = "IDLE", {"POWER_DOWN"}, reason
                self._suspend(host)
            case State.ASAP:
                host.flags |= {"POWER_DOWN", "DRAIN"}
                host.reason = reason
            case State.UP:
                assert "POWERED_DOWN" in host.flags
                host.flags |= {"POWER_UP"}
            case State.DRAIN:
                host.flags |= {"DRAIN"}
                host.reason = reason
            case State.RESUME:
                host.reason = ""
                host.flags -= {"DRAIN"}
                host.base = "IDLE" if host.base == "DOWN" else host.base

    @invariant()
    def a_job_has_whole_slices(self) -> None:
        for slice_ in SLICES:
            assert len({host.job for host in self.of(slice_.name) if host.job}) <= 1

    def teardown(self) -> None:
        """Once nothing happens any more: jobs end, and only static slices are left."""
        self.cloud.refused.clear()
        self.failed.clear()
        steps = [
            self.suspend_timeout, self.idle_too_long, self.not_responding, self.host_registers,
            self.job_leaves,
        ]  # fmt: skip
        for turn in range(40):
            self.look(None)
            self.fleet_acts()
            self.power()
            for slice_ in SLICES:
                if any(host.reason.startswith(FAILED) for host in self.of(slice_.name)):
                    self.person_resumes(slice_.name)
                for step in [*steps, *([self.resume_timeout] if turn == 20 else [])]:
                    for worker in (0, 1):
                        step(slice_.name, worker)
        left = {name for name, phase in self.cloud.records.items() if phase is not Phase.ENDED}
        assert left == {"tpu-0"} == set(self.cloud.nodes), (left, self.hosts)
        assert all(host.booted for host in self.of("tpu-0"))
        assert not any(host.flags & {"DRAIN"} or host.base == "DOWN" for host in self.hosts.values())


Cluster.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCluster = Cluster.TestCase

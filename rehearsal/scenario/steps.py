"""The steps that a scenario can be made of: one dataclass each, whose fields are the keys of the YAML.

The docstring's first line is what `docs/rehearsal.md` says of the step. `scalar` names the field that a
bare value stands for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.door.faults import FaultError, Faults
from rehearsal.cloud.services.tpu.quotas import Quotas
from rehearsal.scenario.jobsteps import Heartbeat, Logged, Page, Start, Stop
from rehearsal.scenario.matching import Matching
from rehearsal.scenario.owner_steps import Guide, Request
from rehearsal.scenario.pipeline_steps import Ends, Fired, Made, Quiet, Retry, Shard, Submit, Taken
from rehearsal.scenario.typed import Deployed, Typed
from rehearsal.world.program import Layer


@dataclass(frozen=True)
class Preview(Deployed):
    """Print the plan and the price of all stacks, before anything exists."""

    def __str__(self) -> str:
        return "preview all stacks, with prices"


@dataclass(frozen=True)
class Up(Deployed, Matching):
    """Bring a layer's stack up with the Pulumi CLI; with `refused` it must fail and print a match of it."""

    regex: ClassVar[str] = "refused"
    scalar: ClassVar[str] = "layer"
    layer: Layer
    refused: str | None = None

    def __str__(self) -> str:
        return f"pulumi up: {self.layer}{', which must fail' if self.refused else ''}"


@dataclass(frozen=True)
class Unchanged(Deployed):
    """`pulumi preview --expect-no-changes`: what is up is what the program says."""

    scalar: ClassVar[str] = "layers"
    layers: tuple[Layer, ...]

    def __str__(self) -> str:
        return f"pulumi preview --expect-no-changes: {', '.join(self.layers)}"


@dataclass(frozen=True)
class Destroy(Deployed, Matching):
    """Destroy a layer's stack; with `refused` it must fail and print a match of that pattern."""

    regex: ClassVar[str] = "refused"
    scalar: ClassVar[str] = "layer"
    layer: Layer
    refused: str | None = None

    def __str__(self) -> str:
        return f"pulumi destroy: {self.layer}{', which must be refused' if self.refused else ''}"


@dataclass(frozen=True)
class Publish(Deployed):
    """Publish the bundle that hosts install, made from this lock: `cpu`, or `bare` (no packages)."""

    scalar: ClassVar[str] = "lock"
    lock: str

    def __str__(self) -> str:
        return f"publish the bundle: {self.lock}"


@dataclass(frozen=True)
class Settings:
    """Change keys of the environment's file from here on; null takes a key away."""

    scalar: ClassVar[str] = "set"
    set: dict[str, Any]

    def __str__(self) -> str:
        return f"change settings: {', '.join(self.set)}"


@dataclass(frozen=True)
class Fleet(Typed):
    """Create or delete the members of fleets with `tpu fleet`, or update what their hosts are told."""

    scalar: ClassVar[str] = "verb"
    verb: Literal["create", "delete"]

    def __str__(self) -> str:
        return f"tpu fleet {self.verb}"


@dataclass(frozen=True)
class Recover(Typed):
    """Bring slices back with `tpu recover`, and wait until the hosts are ready."""

    scalar: ClassVar[str] = "node"
    node: str
    timeout_s: float = 600.0

    def __str__(self) -> str:
        return f"recover {self.node}"


@dataclass(frozen=True)
class Ready:
    """Wait until every host of a node has reported a boot as ready that wasn't there before."""

    scalar: ClassVar[str] = "node"
    node: str
    timeout_s: float = 600.0

    def __str__(self) -> str:
        return f"wait: all hosts of {self.node} ready"


@dataclass(frozen=True)
class Reach:
    """Wait until a run's job has reached a step."""

    run: str
    step: int
    timeout_s: float = 600.0

    def __str__(self) -> str:
        return f"wait: {self.run} at step {self.step}"


@dataclass(frozen=True)
class Done:
    """Wait until a run is done: its last checkpoint committed, its final.json written."""

    scalar: ClassVar[str] = "run"
    run: str
    timeout_s: float = 1200.0

    def __str__(self) -> str:
        return f"wait: {self.run} done"


Kind = Literal["notice", "power-loss", "crash", "maintenance"]
RECOVERS_ITSELF = ("crash", "maintenance")
_KINDS = {
    "notice": "preempted with 30 s notice",
    "power-loss": "preempted without notice",
    "crash": "one worker's job killed with SIGKILL",
    "maintenance": "under maintenance, and back with its boot disks",
}


@dataclass(frozen=True)
class Kill:
    """Interrupt a node at a random time: at a step of `run` drawn from `between`, plus up to `jitter_s`.

    `notice` and `power-loss` preempt it, with 30 s of notice and without; `crash` sends SIGKILL to the job
    on one worker, drawn too; `maintenance` is Google's. A preempted node must be recovered by a later step;
    the other two recover by themselves.
    """

    node: str
    how: Kind
    run: str
    between: tuple[int, int]
    jitter_s: float = 2.0
    timeout_s: float = 900.0

    def __str__(self) -> str:
        first, last = self.between
        return f"{self.node}: {_KINDS[self.how]}, while {self.run} is between steps {first} and {last}"

    def check(self) -> Iterator[str]:
        """The range must not be empty."""
        if self.between[0] > self.between[1]:
            yield f"between: {self.between[0]} is greater than {self.between[1]}"


@dataclass(frozen=True)
class Kills:
    """Interrupt and recover a node `times` times, each kind drawn from `how`, spread over a run's `steps`."""

    node: str
    run: str
    times: int
    steps: int
    how: tuple[Kind, ...] = ("notice", "power-loss", "crash")
    jitter_s: float = 2.0
    timeout_s: float = 900.0

    def __str__(self) -> str:
        return f"{self.times} random kills of {self.node} while {self.run} trains"

    def check(self) -> Iterator[str]:
        """There must be a step for every kill, and a way."""
        if not self.how:
            yield "how: names no way to kill"
        if not 1 <= self.times <= self.steps:
            yield f"times: {self.times} kills don't fit into {self.steps} steps"


@dataclass(frozen=True)
class Shards:
    """Wait until a worker of an extraction has committed so many shards."""

    run: str
    worker: int
    count: int
    timeout_s: float = 600.0

    def __str__(self) -> str:
        return f"wait: {self.count} shards of {self.run}'s worker {self.worker}"


@dataclass(frozen=True)
class Preempt:
    """Preempt a node now, with 30 s of notice or without. The fleet controller must notice."""

    node: str
    how: Literal["notice", "power-loss"]
    run: str

    def __str__(self) -> str:
        return f"{self.node}: {_KINDS[self.how]}"


@dataclass(frozen=True)
class Lose:
    """Take all nodes of a GKE node pool away for `for_s` virtual seconds, with notice or without.

    With `run` it waits until that run, which trains there, has trained a step beyond where it was, and the
    report has the seconds that this took.
    """

    pool: str
    how: Literal["notice", "power-loss"]
    run: str = ""
    for_s: float = 300.0
    timeout_s: float = 180.0

    def __str__(self) -> str:
        again = f"; {self.run} trains again" if self.run else ""
        return f"all nodes of {self.pool}: {_KINDS[self.how]}{again}"


@dataclass(frozen=True)
class Fill:
    """Fill the boot disk of a node's first host: a write must fail there, and its worker must continue."""

    node: str
    run: str
    worker: int
    more: int = 3
    timeout_s: float = 300.0

    def __str__(self) -> str:
        return f"{self.node}: its boot disk is full; wait: {self.more} more shards of worker {self.worker}"


@dataclass(frozen=True)
class Reboot(Matching):
    """Reboot a node's first host, and wait until its boot has failed with a log that holds a match."""

    regex: ClassVar[str] = "fails"
    node: str
    fails: str
    timeout_s: float = 120.0

    def __str__(self) -> str:
        return f"{self.node}: reboot, which must fail"


@dataclass(frozen=True)
class Stall:
    """Stop a node's job (SIGSTOP), on its first host, in the middle of its worker's stream."""

    node: str
    run: str
    worker: int

    def __str__(self) -> str:
        return f"{self.node}: its job is stopped in the middle of worker {self.worker}'s stream"


@dataclass(frozen=True)
class Wake:
    """Let a stalled job continue once others are so many shards beyond it; it must write nothing, and end."""

    scalar: ClassVar[str] = "node"
    node: str
    beyond: int = 2
    timeout_s: float = 300.0

    def __str__(self) -> str:
        return f"{self.node}: its job continues once others are {self.beyond} shards beyond it"


@dataclass(frozen=True)
class Extracted:
    """Wait until all workers of an extraction are done."""

    run: str
    workers: int
    timeout_s: float = 1200.0

    def __str__(self) -> str:
        return f"wait: {self.run} extracted by {self.workers} workers"


@dataclass(frozen=True)
class Alike:
    """Two extractions must have left the same shards, byte for byte."""

    scalar: ClassVar[str] = "runs"
    runs: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.runs[0]} and {self.runs[1]} left the same shards"


@dataclass(frozen=True)
class Same:
    """Two runs must have ended alike: final.json and every step's loss, bit for bit."""

    scalar: ClassVar[str] = "runs"
    runs: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.runs[0]} and {self.runs[1]} are the same to the last bit"


@dataclass(frozen=True)
class Resumed:
    """A run must have gone on from a checkpoint of at least this step."""

    run: str
    from_step: int

    def __str__(self) -> str:
        return f"{self.run} resumed from step {self.from_step} or later"


@dataclass(frozen=True)
class Remember:
    """Note every object below these prefixes: name, generation, size."""

    scalar: ClassVar[str] = "prefixes"
    prefixes: tuple[str, ...]

    def __str__(self) -> str:
        return f"note what is in the bucket: {', '.join(self.prefixes)}"


@dataclass(frozen=True)
class Survived:
    """Every object that was noted must still be there, unchanged."""

    def __str__(self) -> str:
        return "the bucket still holds every object that was noted"


@dataclass(frozen=True)
class Ssh(Typed, Matching):
    """Run a shell command on every worker of a node, as a user would; each must print a match."""

    node: str
    run: str
    prints: str = ""
    timeout_s: float = 60.0

    def __str__(self) -> str:
        return f"ssh to every host of {self.node}: {self.run}"


@dataclass(frozen=True)
class Command(Typed, Matching):
    """Run a shell command in the world; with `fails` its exit status must not be 0."""

    scalar: ClassVar[str] = "run"
    run: str
    prints: str = ""
    fails: bool = False
    timeout_s: float = 600.0

    def __str__(self) -> str:
        first, *more = self.run.splitlines()
        return f"$ {first}{' …' if more else ''}{'   (must fail)' if self.fails else ''}"


@dataclass(frozen=True)
class Fault:
    """Make requests go wrong from here on; a fault that is never observed fails the rehearsal.

    `match`, `when`, `times` and `what` are the cloud's own (`rehearsal/cloud/door/faults.py`).
    """

    name: str
    what: dict[str, Any]
    match: dict[str, Any] = field(default_factory=dict)
    when: dict[str, Any] = field(default_factory=dict)
    times: int | None = 1

    def __str__(self) -> str:
        return f"fault from here on: {self.name}"

    @property
    def rule(self) -> dict[str, Any]:
        """The rule as the control socket takes it."""
        rule: dict[str, Any] = {"match": self.match, "when": self.when, "what": self.what}
        return rule if self.times is None else {**rule, "times": self.times}

    def check(self) -> Iterator[str]:
        """The cloud's own reader decides."""
        try:
            Faults(VirtualClock()).add(self.rule)
        except FaultError as broken:
            yield str(broken)


@dataclass(frozen=True)
class Clock:
    """Let so many virtual seconds pass in a real one from here on."""

    scalar: ClassVar[str] = "rate"
    rate: float

    def __str__(self) -> str:
        return f"clock at {self.rate:g} virtual seconds a second"

    def check(self) -> Iterator[str]:
        """Time doesn't stand still: nothing would ever end."""
        if self.rate <= 0:
            yield f"rate: {self.rate:g} is not positive"


@dataclass(frozen=True)
class Quota:
    """Let the project have so many v6e chips by a quota, in a region or zone, from here on."""

    name: str
    place: str
    chips: int

    def __str__(self) -> str:
        return f"quota {self.name} in {self.place}: {self.chips} chips"

    def check(self) -> Iterator[str]:
        """The cloud's own table decides."""
        try:
            Quotas().set(self.name, self.place, self.chips)
        except ValueError as broken:
            yield str(broken)


Step: TypeAlias = (
    Preview | Up | Unchanged | Destroy | Publish | Settings | Fleet | Recover | Ready | Reach | Done
    | Kill | Kills | Start | Stop | Shards | Preempt | Lose | Fill | Reboot | Stall | Wake | Extracted | Alike
    | Same | Resumed | Remember | Survived | Ssh | Command | Fault | Clock | Quota
    | Logged | Heartbeat | Page | Request | Guide | Submit | Retry | Taken | Ends | Shard | Made
    | Quiet | Fired
)  # fmt: skip

KINDS: dict[str, type[Step]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(Preview, Up, Unchanged, Destroy, Publish, Settings, Fleet, Ready, Reach, Done, Kill, Kills),
        *(Recover, Start, Stop, Shards, Preempt, Lose, Fill, Reboot, Stall, Wake, Extracted, Alike),
        *(Same, Resumed, Remember, Survived, Ssh, Command, Fault, Clock, Quota),
        *(Logged, Heartbeat, Page, Request, Guide),
        *(Submit, Retry, Taken, Ends, Shard, Made, Quiet, Fired),
    )
}

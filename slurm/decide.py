"""Decide on each slice, from Slurm's nodes, the fleet's records and what Google shows, without I/O.

The states of Slurm's nodes are what is wanted: a slice is made when Slurm waits for its hosts, and deleted
once Slurm has given up all of them. So a lost request, an answer that didn't come, or a daemon that was
killed at any point costs a look, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.adhoc import PHASE, WHY, Item, Phase, owner, wanted
from slurm.nodes import SlurmNode

HELD, FAILED = "slice: ", "slice failed: "
"""Beginnings of the reasons that this program gives: nodes with the first are resumed by themselves."""
_TIMED_OUT, _REBOOTED = "ResumeTimeout reached", "Node unexpectedly rebooted"  # Slurm's own reasons


class State(StrEnum):
    """State that `scontrol update node` sets."""

    FORCE = "POWER_DOWN_FORCE"  # jobs are requeued at once
    ASAP = "POWER_DOWN_ASAP"  # once no job has the node; it gets no other
    UP = "POWER_UP"
    DRAIN = "DRAIN"
    RESUME = "RESUME"


@dataclass(frozen=True)
class Slice:
    """A slice of the settings.

    Attributes:
        name: of its record.
        hosts: Slurm's names of them.
        item: its record, as the settings describe it.
        static: it is always there.
    """

    name: str
    hosts: tuple[str, ...]
    item: Item = field(hash=False)
    static: bool = False


@dataclass(frozen=True)
class SliceStatus:
    """State of a slice by the fleet's controller.

    Attributes:
        exists: Google has its node, in whatever state.
        ready: its node is READY.
        lost: why its hosts won't answer again; empty: they may.
        failed: why its hosts have failed for good; empty: they haven't.
    """

    exists: bool = False
    ready: bool = False
    lost: str = ""
    failed: str = ""


@dataclass(frozen=True)
class World:
    """Input of a decision.

    Attributes:
        nodes: of Slurm, by name.
        records: of all owners that haven't ended, by name.
        owned: names of those that are this cluster's.
        ended: reasons of records that have ended, by name.
        seen: by slice; None: Google wasn't seen.
        refused: why a slice can't be made now, by name.
        unread: why a record can't be followed, by name: nothing is done about its slice.
        running: hosts of jobs that have begun.
    """

    nodes: Mapping[str, SlurmNode]
    records: Mapping[str, Item]
    owned: Collection[str]
    ended: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, SliceStatus] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    running: Collection[str] = ()


@dataclass(frozen=True)
class Want:
    """Write the record of a slice."""

    slice: str
    item: Item = field(hash=False)


@dataclass(frozen=True)
class End:
    """Begin to end the record of a slice."""

    slice: str
    why: str


@dataclass(frozen=True)
class Update:
    """Update nodes of Slurm."""

    hosts: tuple[str, ...]
    state: State
    reason: str = ""


@dataclass(frozen=True)
class Tell:
    """Report what a person has to know of a slice."""

    slice: str
    text: str


Action = Want | End | Update | Tell


def decide(slices: Sequence[Slice], world: World) -> list[Action]:
    """Return the actions, in their order; deciding again after any of them completes the others."""
    actions = [action for slice_ in slices for action in _of(slice_, world)]
    kept = {slice_.name for slice_ in slices}
    removed: dict[str, list[SlurmNode]] = {name: [] for name in sorted(set(world.owned) - kept)}
    for node in world.nodes.values():
        if (name := node.name.rpartition("-w")[0]) not in kept:
            removed.setdefault(name, []).append(node)
    # Once all of them are given up, Slurm gets files without them (slurm/daemon.py).
    stays = not all(node.out for several in removed.values() for node in several)
    for name, several in removed.items():
        actions += _removed(name, _Hosts(several), world, stays=stays)
    return actions


def _of(slice_: Slice, world: World) -> Iterator[Action]:
    name, hosts = slice_.name, [world.nodes[host] for host in slice_.hosts if host in world.nodes]
    if len(hosts) < len(slice_.hosts):
        return  # Slurm doesn't know them yet: its configuration is about to be applied
    if problem := world.unread.get(name):
        yield Tell(name, problem)
        return
    record, hosted = world.records.get(name), _Hosts(hosts)
    if record is not None and name not in world.owned:
        why = f"{name} is a fleet of {owner(record)}"
        yield Tell(name, f"{why}, and none of this cluster's\n    fix: end it, or rename the nodeset")
        yield from _force(hosted.up + hosted.asking, HELD + why)
    elif record is None:
        yield from _without_record(slice_, hosted, world)
    elif record[PHASE] is Phase.WANTED:
        yield from _wanted(slice_, hosted, record, world)
    else:
        yield from _force(hosted.up, HELD + str(record.get(WHY) or "its slice is being ended"))


class _Hosts:
    """Hosts of a slice, by what Slurm does with them."""

    def __init__(self, hosts: Sequence[SlurmNode]):
        self.all = tuple(hosts)
        self.up = tuple(node.name for node in hosts if node.up)
        self.asking = tuple(node.name for node in hosts if node.powering_up)
        self.out = tuple(node.name for node in hosts if node.out)

    def of(self, applies: Callable[[SlurmNode], bool]) -> tuple[str, ...]:
        """Return the names of some."""
        return tuple(node.name for node in self.all if applies(node))

    def begun(self, running: Collection[str]) -> tuple[str, ...]:
        """Return those that slurmctld, having lost its newest state, takes for powered down under a job.

        `running`: hosts of jobs that have begun.
        """
        return self.of(lambda node: node.due and node.name in running)

    @property
    def callable(self) -> tuple[str, ...]:
        """Hosts that are powered down, and that jobs may get."""
        return self.of(lambda node: node.powered_down and not node.held)


def _force(hosts: tuple[str, ...], reason: str) -> Iterator[Action]:
    if hosts:
        yield Update(hosts, State.FORCE, reason)


def _drain(hosts: _Hosts, reason: str) -> Iterator[Action]:
    if free := hosts.of(lambda node: node.out and not node.held):
        yield Update(free, State.DRAIN, reason)


def _wanted(slice_: Slice, hosts: _Hosts, record: Item, world: World) -> Iterator[Action]:
    """Yield the actions for a slice whose record wants it."""
    # Those, too, that a slurmctld which has lost its newest state takes for powered down under a job.
    name, rest = slice_.name, hosts.of(lambda node: not node.out)
    seen = (world.seen or {}).get(name)
    if len(hosts.out) == len(hosts.all):
        timed_out = hosts.of(lambda node: node.reason == _TIMED_OUT)
        if timed_out and seen and seen.ready:  # they run, and are paid for, and aren't the cluster's
            yield Update(timed_out, State.DRAIN, f"{FAILED}the hosts of {name} booted, and didn't join")
        yield End(name, (seen and (seen.failed or seen.lost)) or "no job has it any more")
    elif seen and seen.failed:
        yield from _force(rest, FAILED + seen.failed)  # the record ends once Slurm has given up all of them
    elif seen and seen.lost:
        yield from _force(rest, HELD + seen.lost)
    elif seen and not seen.exists and (why := world.refused.get(name)):
        yield from _force(rest, HELD + why)
    elif wanted(record) != wanted(slice_.item):  # what the settings have changed comes with new hosts
        yield from _leave(hosts, "the settings changed")
        yield from _force(hosts.asking, f"{HELD}the settings changed")
    elif hosts.asking and not hosts.up and hosts.callable:  # a person has powered up a part
        yield Update(hosts.callable, State.UP)
    elif hosts.out:  # slices go as a whole
        yield from _leave(hosts, "its slice goes")
    elif back := hosts.of(lambda node: node.base == "DOWN" and node.reason == _REBOOTED):
        yield Update(back, State.RESUME)  # Slurm gives the reason when it is back; its job was queued again


def _leave(hosts: _Hosts, why: str) -> Iterator[Action]:
    if staying := hosts.of(lambda node: node.up and not node.leaving):
        yield Update(staying, State.ASAP, HELD + why)


def _without_record(slice_: Slice, hosts: _Hosts, world: World) -> Iterator[Action]:
    """Yield the actions for a slice that has no record, or whose record has ended."""
    name, refused = slice_.name, world.refused.get(slice_.name)
    begun = hosts.begun(world.running)
    if hosts.up or begun:  # nothing stands behind them: a person has ended the slice, or records are lost
        ended = f"its slice has ended: {world.ended[name]}" if name in world.ended else "it has no slice"
        yield from _force(hosts.up + hosts.asking + begun, HELD + ended)
    elif refused:
        yield from _force(hosts.asking, HELD + refused)
        yield from _drain(hosts, HELD + refused)  # so that jobs take others
    elif hosts.asking:
        yield Want(name, slice_.item)
    else:
        for node in hosts.all:
            if node.reason.startswith(FAILED) and not node.held:
                yield Update((node.name,), State.DRAIN, node.reason)
        if passed := hosts.of(lambda node: node.powered_down and node.held and _passes(node)):
            yield Update(passed, State.RESUME)
        ready = hosts.of(lambda node: not node.reason.startswith(FAILED) and node.name in hosts.callable)
        if slice_.static and ready:
            yield Update(ready, State.UP)


def _passes(node: SlurmNode) -> bool:
    """Return whether the reason of a held node is over, once nothing refuses its slice."""
    return node.reason.startswith(HELD) or node.reason == _TIMED_OUT


def _removed(name: str, hosts: _Hosts, world: World, *, stays: bool) -> Iterator[Action]:
    """Yield the actions for a slice that the settings don't have any more.

    `stays`: hosts without a record are kept from jobs, since slurmctld has them for longer.
    """
    why = f"the settings have no slice {name} any more"
    if name in world.owned and world.records[name][PHASE] is Phase.WANTED:
        yield from _leave(hosts, why)
        yield from _force(hosts.asking, HELD + why)
        if len(hosts.out) == len(hosts.all):
            yield End(name, why)
    elif stays and name not in world.owned and name not in world.unread:
        yield from _force(hosts.up + hosts.asking + hosts.begun(world.running), HELD + why)
        yield from _drain(hosts, HELD + why)

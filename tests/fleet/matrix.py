"""The fault matrix: every request of a fleet's, met by every fault, in the emulated cloud.

A cell arms one fault, sees that it happened, and says what the fleet took it for, what the keeper did then,
what was true at Google, and what mended it once the fault was gone. Requests of the fleet's own are a
cell each; those that Pulumi sends on its behalf go in batches, a zone for each cell of one update.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from fleet.books import BucketBooks, UnreachableError
from fleet.loop import Keeper

from fleet import google
from fleet.decide import Limits
from fleet.failures import Failure, Kind
from fleet.state import Action, Place
from infra.nodes import Node
from tests.fleet.lab import LABELS, Here, Lab, Seeing

PASSING = ("429", "500", "503", "reset", "lost answer")  # those that are also tried for one request alone
FAULTS = (*PASSING, "slow", "failed operation", "stock-out", "quota", "403")
STARTERS = ("nodes.create", "nodes.delete")  # what begins an operation
OWN = ("nodes.list", "nodes.delete", "objects.list", "objects.get", "objects.insert")
PULUMI = (
    ("create", "nodes.create"), ("create", "operations.get"), ("create", "nodes.get"),
    ("replace", "nodes.get"), ("replace", "nodes.delete"), ("replace", "operations.get"),
    ("delete", "nodes.delete"),
)  # fmt: skip
OVERCOME, UNSEEN = "overcome", "seen at the next look"
_NO_CHIPS = (
    "There is no more capacity in the zone; you can try in another zone where Cloud TPU Nodes are available"
)
_WHAT: dict[str, dict[str, Any]] = {
    "429": {"status": 429, "retry_after_s": 2},
    "500": {"status": 500},
    "503": {"status": 503},
    "reset": {"reset": True},
    "lost answer": {"lost_answer": True},
    "slow": {"delay_s": 2.5},
    "failed operation": {
        "operation_error": {"code": "INTERNAL", "message": "an internal error has occurred"}
    },
    "stock-out": {"operation_error": {"code": "RESOURCE_EXHAUSTED", "message": _NO_CHIPS}},
    "quota": {
        "status": 429,
        "message": "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0.",
    },
    "403": {"status": 403, "message": "Permission 'tpu.nodes.any' denied on resource (or it may not exist)."},
}


@dataclass(frozen=True)
class Ask:
    """A request, the fault that it meets, and whether that stays until somebody has seen what it led to.

    Attributes:
        by: `fleet`, or what Pulumi does at the time: `create`, `replace`, `delete`.
        method: as Google calls it.
        fault: of FAULTS.
        lasts: False for one request alone.
    """

    by: str
    method: str
    fault: str
    lasts: bool = True

    @property
    def arranged(self) -> bool:
        """Whether the fault is no rule, but machines that neither start nor end."""
        return self.fault == "slow" and self.method in STARTERS

    def rule(self, zone: str) -> dict[str, Any]:
        """The fault, for the front door."""
        what = _WHAT[self.fault]
        if self.fault == "stock-out" and self.method not in STARTERS:
            what = {"status": 429, "message": _NO_CHIPS}
        api = "storage" if self.method.startswith("objects") else "tpu.projects.locations"
        path = f"/locations/{zone}/" if api != "storage" else ""
        rule: dict[str, Any] = {"match": {"method": f"{api}.{self.method}", "path": path}, "what": what}
        return rule if self.lasts else {**rule, "times": 1}


@dataclass(frozen=True)
class Cell:
    """What came of it.

    Attributes:
        by, method, fault, lasts: see Ask.
        kind: of the failure; OVERCOME where there was none for the fleet, UNSEEN where its request succeeded.
        then: what the keeper did.
        truth: at Google, once its operations had ended, while the fault was still there.
        mended: how it came right after the fault.
    """

    by: str
    method: str
    fault: str
    lasts: bool
    kind: str
    then: str
    truth: str
    mended: str


def asked(cell: Mapping[str, Any]) -> Ask:
    """The request and fault that a cell on record is of."""
    return Ask(cell["by"], cell["method"], cell["fault"], cell["lasts"])


def of_the_fleet() -> list[Ask]:
    """Every fault of the fleet's own requests. What starts no operation has none that fails."""
    return [ask for method in OWN for ask in _asks("fleet", method)]


def of_pulumi() -> list[Ask]:
    """Every fault of the requests that Pulumi sends for the fleet."""
    return [ask for by, method in PULUMI for ask in _asks(by, method)]


def _asks(by: str, method: str) -> Iterator[Ask]:
    for fault in FAULTS:
        if fault == "failed operation" and method not in STARTERS:
            continue
        if fault in PASSING:
            yield Ask(by, method, fault, lasts=False)
        yield Ask(by, method, fault)


@contextmanager
def _armed(lab: Lab, asks: Sequence[tuple[Node, Ask]]) -> Iterator[None]:
    """Faults in force, one for each node; at the end each has happened."""
    rules = {}
    for node, ask in asks:
        if ask.arranged:
            lab.hosts.slow.add(node.name)
        else:
            rules[lab.cloud.faults.add(ask.rule(node.zone))] = ask
    try:
        yield
        for node, ask in asks:
            if ask.arranged:
                assert lab.state(node.name) in ("CREATING", "DELETING"), f"{ask} didn't happen"
    finally:
        lab.hosts.slow.clear()
        observed = {ask: lab.cloud.faults.lift(rule) for rule, ask in rules.items()}
    assert all(observed.values()), f"didn't happen: {[ask for ask, count in observed.items() if not count]}"


# The fleet's own


class _Noted:
    """A builder that only remembers what it was to build."""

    def __init__(self) -> None:
        self.begun: tuple[str, ...] = ()

    def held(self) -> None:
        """Nobody asks for a stack here."""

    def start(self, places: Mapping[str, Place]) -> None:
        self.begun = tuple(places)

    def ended(self) -> None:
        pass


@contextmanager
def impatient(asker: google.Google) -> Iterator[list[float]]:
    """It gives Google a second to answer, and doesn't sleep; what it would have slept."""
    slept: list[float] = []
    with (
        mock.patch.object(asker, "_sleep", slept.append),
        mock.patch.object(google, "_TIMEOUT_S", (1.0, 1.0)),
    ):
        yield slept


def own(lab: Lab, ask: Ask) -> Cell:
    """A keeper that must bring one member back, and sweep one leftover, meets a fault of its own requests."""
    member = next(one for one in lab.members if one.zone == "us-east5-b")
    leftover = "tpu-us-east5-b-9"
    stray = replace(member, name=leftover)
    sweeps = ask.method == "nodes.delete"
    for name in (member.name, *([leftover] * sweeps)):
        if lab.state(name) != "PREEMPTED":
            lab.create(name, member.zone)
            lab.preempt(name)
    lab.forget_memory()
    seeing, builder = Seeing(lab), _Noted()
    keeper: Keeper | None = None
    events: list[str] = []
    with impatient(seeing.google) as slept:
        with _armed(lab, [(stray if sweeps else member, ask)]):
            try:
                keeper = _keeper(lab, [member], seeing, builder)
                events = keeper.step().events
            except UnreachableError:
                pass
            lab.settle()
            truth = f"{lab.state(leftover) or 'no node'}"
        failed = [one for one in seeing.google.failed if one.kind is not Kind.MISSING]  # no memory yet
        begun = builder.begun
        if ask.fault == "429":
            assert 2.0 in slept, "Retry-After is kept to"
        mended = "the next look" if keeper else "a command that is begun again"
        keeper = keeper or _keeper(lab, [member], seeing, builder)
        lab.settle()
        keeper.step()
        assert builder.begun == (member.name,), builder.begun
        lab.until(lambda: not lab.state(leftover))
        keeper.leave()
    kind = str(failed[0].kind) if failed else OVERCOME
    if not sweeps:
        then, truth = "goes on" if begun else "nothing is begun", "as it was"
    else:
        said = next(event for event in events if event.startswith(leftover))
        then = "not deleted" if "not deleted" in said else "its deletion is begun"
        kind = kind if failed or truth == "no node" else UNSEEN
    mended = "nothing to mend" if kind == OVERCOME else mended
    return Cell(ask.by, ask.method, ask.fault, ask.lasts, kind, then, truth, mended)


def _keeper(lab: Lab, members: Sequence[Node], seeing: Seeing, builder: Any) -> Keeper:
    books = BucketBooks(seeing.google, seeing.now_s)
    dice = random.Random(0)
    return Keeper(members, seeing, builder, books, Limits(), LABELS, dice, everyone=lab.members)


# Through Pulumi


def batch(lab: Lab, here: Here, asks: Sequence[Ask]) -> list[Cell]:
    """Cells of one update, each in a zone of its own; one more member stands beside them."""
    (by,) = {ask.by for ask in asks}
    beside, *others = lab.members
    subjects = others[: len(asks)]
    _prepare(lab, here, by, beside, subjects)
    stood = (lab.node(beside.name) or {}).get("id")
    seeing = Seeing(lab)
    keeper = _keeper(lab, [beside, *subjects], seeing, here)
    by_name = dict(zip([one.name for one in subjects], asks, strict=True))
    with _armed(lab, list(zip(subjects, asks, strict=True))):
        if by == "delete":
            lab.hosts.may_go = set(by_name)
            outcome = here.stack.remove(list(by_name))
        else:
            keeper.step()
            here.wait()
            keeper.step(may=())
            outcome = keeper.outcome
        lab.settle()
        truths = {name: _truth(lab, here, name) for name in by_name}
    assert lab.state(beside.name) == "READY", "a fault in one zone is none in another"
    assert stood in (None, (lab.node(beside.name) or {})["id"]), "nobody touches a healthy node"
    then = {one.name: _then(by, keeper, one, outcome[one.name]) for one in subjects}
    wrong = [name for name in by_name if not _right(lab, here, by, name)]
    mended = _mend(lab, here, by, wrong, keeper, seeing)
    assert not lab.hosts.healthy_deleted, lab.hosts.healthy_deleted
    keeper.leave()
    return [
        Cell(
            by, ask.method, ask.fault, ask.lasts, _kind(outcome[name]), then[name], truths[name], mended[name]
        )
        for name, ask in by_name.items()
    ]


def batches(asks: Sequence[Ask], most: int) -> Iterator[list[Ask]]:
    """Cells that one update meets together: all are of the same kind of update."""
    for by in dict.fromkeys(ask.by for ask in asks):
        some = [ask for ask in asks if ask.by == by]
        yield from (some[begin : begin + most] for begin in range(0, len(some), most))


def _prepare(lab: Lab, here: Here, by: str, beside: Node, subjects: Sequence[Node]) -> None:
    names = [one.name for one in subjects]
    if by == "create":
        for name in names:
            if lab.state(name):
                lab.delete(name)
    else:
        missing = [name for name in [beside.name, *names] if not _right(lab, here, "create", name)]
        if missing:
            outcome = here.stack.bring(lab.places(*missing))
            assert not any(outcome.values()), outcome
    if by == "replace":
        for name in names:
            lab.preempt(name)
    here.ask_again()
    lab.hosts.may_go.clear()
    lab.forget_memory()


def _mend(
    lab: Lab, here: Here, by: str, wrong: Sequence[str], keeper: Keeper, seeing: Seeing
) -> dict[str, str]:
    """How what went wrong comes right: rounds of the keeper, after a person where it holds."""
    found: dict[str, str] = {}
    stopped = any(one.stopped for one in keeper.memory.refusals.values())
    for number in (1, 2, 3):
        left = [name for name in wrong if name not in found]
        if not left:
            break
        seeing.ahead_s += 1400  # longer than a keeper ever waits
        lab.settle()
        if by == "delete":
            here.stack.remove(left)
        else:
            if stopped and number == 1:
                keeper.memory.acted()
            keeper.step()
            here.wait()
            looked = {one.node: one.action for one in keeper.step(may=()).decisions}
            left = [name for name in left if looked[name] is Action.LEAVE]
        rounds = f"{number} round" + "s" * (number > 1)
        found |= {name: rounds for name in left if _right(lab, here, by, name)}
    assert set(found) == set(wrong), f"{set(wrong) - set(found)} don't come right"
    return {name: found.get(name, "nothing to mend") for name in [one.name for one in lab.members]}


def _right(lab: Lab, here: Here, by: str, name: str) -> bool:
    """Whether a node is as it was asked for, at Google and in the stack."""
    here.ask_again()
    if by == "delete":
        return not lab.state(name) and name not in here.held()
    return lab.state(name) == "READY" and name in here.held()


def _truth(lab: Lab, here: Here, name: str) -> str:
    here.ask_again()
    state = lab.state(name) or "no node"
    return state if (name in here.held()) == bool(lab.state(name)) else f"{state}, and the stack differs"


def _then(by: str, keeper: Keeper, one: Node, failure: Failure | None) -> str:
    if failure is None:
        return "goes on"
    if by == "delete":
        return "is not asked; the command says so"
    refusal = keeper.memory.refusal(one.name, one.zone)
    return "held for a person" if refusal.stopped else "tried again later"


def _kind(failure: Failure | None) -> str:
    return str(failure.kind) if failure else OVERCOME

"""Presentation of an observation: rows, sums, tables, JSON."""

import os
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from typing import Any

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from fleet.adhoc import NOTHING, PHASE, WHY, Item, Phase, owner
from fleet.events import left_out
from fleet.model import GOING, TAKEN_AWAY, Condition, Decision, ObservedNode, View, WorkerStatus
from fleet.observation import Observation
from infra.catalog import CATALOG
from infra.engine.roles import with_roles
from infra.slices.names import command_id
from infra.slices.nodes import Node
from views.console import Terminal
from views.counts import counted
from views.terminal import clean

_RATE_OVER_S = 600.0
_ANY_WIDTH = 10_000
# Order of the rows where not all fit: those that need attention first.
MARKS = {
    Condition.FAILED: "red",
    Condition.RECOVERING: "magenta",
    Condition.UNKNOWN: "bright_black",
    Condition.ABSENT: "bright_black",
    Condition.STARTING: "yellow",
    Condition.WORKING: "green",
    Condition.DONE: "cyan",
}


@dataclass(frozen=True)
class MemberRow:
    """Row of a member as last observed; None and 0: unknown."""

    slice: str
    node: str
    zone: str
    state: str
    condition: str
    stage: str
    samples: int
    of_samples: int
    shards: int
    size_bytes: int
    samples_per_s: float | None
    left_s: float | None
    why: str
    loss: float | None = None
    goodput: float | None = None
    run: str = ""


class Rates:
    """Rates of members, from observations of the last ten minutes."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def note(self, node: str, at_s: float, samples: int) -> float | None:
        """Return samples per second; None until two observations, or if the count decreased."""
        observed = self._seen.setdefault(node, deque())
        if observed and (samples < observed[-1][1]):
            observed.clear()
        if not observed or at_s > observed[-1][0]:
            observed.append((at_s, samples))
        while at_s - observed[0][0] > _RATE_OVER_S:
            observed.popleft()
        (begun_s, before), (ended_s, after) = observed[0], observed[-1]
        return (after - before) / (ended_s - begun_s) if ended_s > begun_s else None


def rows(observation: Observation, rates: Rates) -> list[MemberRow]:
    """Return a row per member, in their order."""
    result = []
    slices = {(member.zone, member.name): member.slice for member in observation.members}
    for decision in observation.decisions:
        observed = observation.view.node(decision.node, decision.zone)
        status = _stored(decision, observation.view)
        rate = rates.note(decision.node, observation.view.at_s, status.samples) if status.samples else None
        if decision.condition is not Condition.WORKING:
            rate = None  # of the time before it was lost
        left = (status.of_samples - status.samples) / rate if rate and status.of_samples else None
        result.append(
            MemberRow(
                slices.get((decision.zone, decision.node), ""), decision.node, decision.zone,
                observed.state if observed else "", decision.condition, status.stage,
                status.samples, status.of_samples, status.shards, status.size_bytes, rate, left, decision.why,
                status.loss, status.goodput, status.run,
            )
        )  # fmt: skip
    return result


def _stored(decision: Decision, view: View) -> WorkerStatus:
    """Return a member's status; until its new node works, with what the one before it had stored."""
    status = decision.status or WorkerStatus(0.0)
    if status.work or decision.condition not in (Condition.RECOVERING, Condition.STARTING):
        return status
    before = view.reported(decision.node, command_id(decision.member.run or ""))
    if before is None or not before.shards:  # a trainer resumes at a checkpoint, perhaps of an earlier step
        return status
    return replace(
        status,
        samples=before.samples,
        of_samples=before.of_samples,
        shards=before.shards,
        size_bytes=before.size_bytes,
    )


class Spent:
    """Price of nodes since their creation by Google's clock, at the list price.

    Over all observations that were noted: also of nodes that were preempted meanwhile.
    """

    def __init__(self, *observations: Observation) -> None:
        # By name and instance: chip-hours and dollars.
        self._nodes: dict[tuple[str, str], tuple[float, float | None]] = {}
        for observation in observations:
            self.note(observation)

    def note(self, observation: Observation) -> None:
        """Add an observation's nodes, or make those that are known older."""
        for member, observed in observation.nodes:
            hourly = _hourly(member, observed.zone)
            lived_h = (observation.view.cloud_s - observed.created_s) / 3600 if observed.created_s else 0.0
            lived_h = max(0.0, lived_h)
            dollars = None if hourly is None else hourly * lived_h
            self._nodes[observed.name, observed.instance] = member.kind.chips * lived_h, dollars

    @property
    def dollars(self) -> float:
        """US dollars of the nodes whose price is known."""
        return sum(dollars or 0.0 for _, dollars in self._nodes.values())

    @property
    def chip_hours(self) -> float:
        """Chip-hours of the same nodes."""
        return sum(hours for hours, dollars in self._nodes.values() if dollars is not None)

    @property
    def unknown(self) -> list[str]:
        """Names of the nodes whose price isn't known."""
        return sorted(name for (name, _), (_, dollars) in self._nodes.items() if dollars is None)


def summary(result: Sequence[MemberRow]) -> str:
    """Return the number of members per condition and the totals, in a line."""
    counts = Counter(row.condition for row in result)
    conditions = ", ".join(f"{counts[item]} {item}" for item in Condition if counts[item])
    samples, shards, size = (
        sum(getattr(row, key) for row in result) for key in ("samples", "shards", "size_bytes")
    )
    rate = sum(row.samples_per_s or 0 for row in result)
    statuses = [f"{counted(len(result), 'slice')}: {conditions or 'none'}"]
    if samples:
        statuses.append(f"{samples:,} samples, {shards:,} shards, {decimal(size)}")
    if rate:
        statuses.append(f"{rate:,.1f} samples/s")
    return "; ".join(statuses)


def facts(result: Sequence[MemberRow], observation: Observation, spent: Spent) -> dict[str, str]:
    """Return the few numbers to see first, by name."""
    counts = Counter(row.condition for row in result)
    rate = sum(row.samples_per_s or 0 for row in result)
    hourly = [_hourly(member, observed.zone) for member, observed in observation.nodes]
    known = [item for item in hourly if item is not None]
    return {
        "slices": f"{len(result)}",
        **{str(item): f"{counts[item]}" for item in Condition if counts[item]},
        **({"rate": in_rate(rate)} if rate else {}),
        "now": f"${sum(known):,.2f}/h" if len(known) == len(hourly) else "unknown $/h",
        f"for {spent.chip_hours:,.1f} chip-hours": f"${spent.dollars:,.2f}{' +' if spent.unknown else ''}",
    }


def _hourly(member: Node, zone: str) -> float | None:
    """Return the dollars per hour of a node; None: unknown."""
    item = CATALOG.price(zone)
    price = item.spot if member.spot else item.on_demand
    return None if price is None or member.reserved else price * member.kind.chips


def remedies(observation: Observation) -> list[str]:
    """Return the fixes for members, once for all that share one."""
    mapping: dict[str, list[Decision]] = {}
    for decision in observation.decisions:
        if fix := decision.why.partition("\n    fix: ")[2]:
            mapping.setdefault(fix, []).append(decision)
    return [
        f"{several[0].node}{f' and {len(several) - 1} more' if len(several) > 1 else ''}: {several[0].why}"
        for several in mapping.values()
    ]


HEAD = (
    "slice", "node", "zone", "state", "condition", "samples", "loss", "goodput/start", "shards", "size",
    "rate", "left", "why",
)  # fmt: skip
_NUMBERS = HEAD[5:12]


def cells(row: MemberRow) -> tuple[str, ...]:
    """Return a row as text."""
    samples = (
        f"{row.samples:,}" + (f" of {row.of_samples:,}" if row.of_samples else "") if row.samples else ""
    )
    return (
        row.slice, row.node, row.zone, row.state or "-", row.condition, samples,
        "" if row.loss is None else f"{row.loss:.3f}", "" if row.goodput is None else f"{row.goodput:.0%}",
        f"{row.shards:,}" if row.shards else "", decimal(row.size_bytes) if row.size_bytes else "",
        "" if row.samples_per_s is None else in_rate(row.samples_per_s),
        "" if row.left_s is None else in_time(row.left_s), row.why.partition("\n")[0],
    )  # fmt: skip


def table(result: Sequence[MemberRow], title: str = "") -> Table:
    """Return a row for each member, for a terminal, a page or plain text."""
    drawn = _table(*HEAD, title=title)
    for row in result:
        style = MARKS[Condition(row.condition)]
        drawn.add_row(*(Text(clean(cell), style * (n == 4)) for n, cell in enumerate(cells(row))))
    return drawn


def listed(
    nodes: Sequence[ObservedNode], wanted: Mapping[tuple[str, str], Node], owners: Mapping[str, str]
) -> Table:
    """Return a table of nodes with their slices, and the owners of ad hoc ones."""
    drawn = _table("node", "zone", "state", "slice", "owner")
    for observed in sorted(nodes, key=lambda item: (item.zone, item.name)):
        member = wanted.get((observed.zone, observed.name))
        name = member.slice if member else "none: an orphan"
        drawn.add_row(observed.name, observed.zone, observed.state, name, clean(owners.get(name, "")))
    return drawn


def _table(*head: str, title: str = "") -> Table:
    drawn = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    for name in head:
        drawn.add_column(name, no_wrap=name != "why", justify="right" if name in _NUMBERS else "left")
    return drawn


def plain(drawn: Table) -> str:
    """Return lines of text of any length, in colour at a terminal unless NO_COLOR is set."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    console = Terminal(file=StringIO(), width=_ANY_WIDTH, force_terminal=colour)
    console.print(drawn)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def unanswered(observation: Observation) -> list[str]:
    """Return the zones and buckets that didn't answer, with the reason."""
    silent = {zone: view.failure for zone, view in sorted(observation.view.zones.items())}
    silent["the bucket"] = observation.view.failure
    return [f"{who} didn't answer: {with_roles(str(failure))}" for who, failure in silent.items() if failure]


def remarks(observation: Observation) -> list[str]:
    """Return fixes for members, and orphans."""
    output = remedies(observation)
    if observation.orphans:
        orphans = ", ".join(
            f"{orphan.name} ({orphan.zone}, {orphan.state})" for orphan in observation.orphans
        )
        output.append(f"orphans: {orphans}")
    output += _doubled(observation)
    if unread := observation.view.unread:
        output.append(left_out(unread, [*unread]))
    if unknown := Spent(observation).unknown:
        output.append(f"without a price, since the catalog has none: {', '.join(unknown)}")
    return output + _ended(observation)


def _ended(observation: Observation) -> list[str]:
    """Return the next commands for slices that are paid for although their programs have ended."""
    billed = {
        (observed.zone, observed.name): observed.labels.get("environment", "ENV")
        for _, observed in observation.nodes
        if observed.state not in TAKEN_AWAY | GOING
    }
    decisions = observation.decisions
    paid = dict.fromkeys(item.member.slice for item in decisions if (item.zone, item.node) in billed)
    by_slice = {name: [item for item in decisions if item.member.slice == name] for name in paid}
    environment, lines = next(iter(billed.values()), "ENV"), []
    done = [
        several[0].member for several in by_slice.values()
        if all(decision.condition is Condition.DONE for decision in several)
    ]  # fmt: skip
    named = [member.slice for member in done if member.member is None]
    fleets = [member.slice for member in done if member.member is not None]
    delete = " ".join([f"tpu fleet delete {environment}", *(f"--slice {name}" for name in fleets)])
    paid_for = "all are done, and paid for until they are deleted"
    if named and observation.whole and all(item.condition is Condition.DONE for item in decisions):
        first = f"{delete}, then " if fleets else ""
        lines.append(f"{paid_for}: {first}tpu down {environment}")
    else:
        lines += [f"{', '.join(fleets)}: {paid_for}: {delete}"] if fleets else []
        lines += [f"{', '.join(named)}: {paid_for}: {_removal(environment)}"] if named else []
    for name, several in by_slice.items():
        if any(item.condition is Condition.FAILED and item.status and item.status.final for item in several):
            fix = f"tpu logs {environment} {name}; then tpu restart {environment} --slice {name}"
            stacked = several[0].member.member is None
            delete = _removal(environment) if stacked else f"tpu fleet delete {environment} --slice {name}"
            lines.append(f"{name}: failed, isn't started again, and is paid for: {fix}, or {delete}")
    return lines


def _removal(environment: str) -> str:
    """Return how named slices are taken down for good: the stack recreates what is merely deleted."""
    return f"delete the entry in Pulumi.{environment}.yaml, then tpu up {environment}"


def _doubled(observation: Observation) -> list[str]:
    """Return a line for each node of a member that has another one, which is kept."""
    kept = {
        (observed.labels.get("fleet"), observed.labels.get("member")): observed.name
        for _, observed in observation.nodes
    }
    lines = []
    for orphan in observation.orphans:
        member = orphan.labels.get("fleet"), orphan.labels.get("member")
        if (other := kept.get(member)) and member[1]:
            environment = orphan.labels.get("environment")
            twice = f"{member[0]}/{member[1]} has two nodes: {other} is kept"
            what = f"{twice}, {orphan.name} in {orphan.zone} is left alone"
            lines.append(f"{what}\n    fix: tpu fleet delete {environment} --orphans, after a look at both")
    return lines


def of_adhoc(fleets: Mapping[str, Item]) -> list[str]:
    """Return a line for each ad hoc fleet: its owner, and its phase if its end has begun."""
    lines = []
    for name, item in sorted(fleets.items()):
        phase = item[PHASE]
        end = "" if phase == Phase.WANTED else f", {phase} ({item.get(WHY) or 'without a reason'})"
        lines.append(clean(f"{name}: ad hoc, of {owner(item)}{end}"))
    return lines


def price_so_far(spent: Spent) -> str:
    """Return the price of nodes, in a line."""
    known = "known prices alone: " if spent.unknown else ""
    return f"{known}${spent.dollars:,.2f} so far, {spent.chip_hours:,.1f} chip-hours by Google's clock"


def as_json(
    observation: Observation, result: Sequence[MemberRow], adhoc: Mapping[str, Item] = NOTHING
) -> dict[str, Any]:
    """Return the document for programs."""
    spent = Spent(observation)
    answers = {zone: str(view.failure.kind) for zone, view in observation.view.zones.items() if view.failure}
    return {
        "at_s": observation.view.at_s,
        "members": [asdict(row) for row in result],
        "decisions": {decision.node: decision.action for decision in observation.decisions},
        "adhoc": {name: {"owner": owner(item), PHASE: item[PHASE]} for name, item in adhoc.items()},
        "orphans": [asdict(orphan) for orphan in observation.orphans],
        "unanswered": answers
        | ({"bucket": observation.view.failure.kind} if observation.view.failure else {}),
        "dollars_so_far": None if spent.unknown else spent.dollars,
    }


def in_rate(per_s: float) -> str:
    """2.50/s, or per minute or hour where the number would be small."""
    if per_s >= 0.1 or not per_s:
        return f"{per_s:,.2f}/s"
    return f"{per_s * 60:.2f}/min" if per_s * 60 >= 0.1 else f"{per_s * 3600:.2f}/h"


def in_time(seconds: float) -> str:
    """Return a duration such as 1:05 h or 4 min."""
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02} h" if minutes >= 60 else f"{minutes} min"

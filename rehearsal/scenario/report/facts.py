"""Numbers that the terminal and the page both show, computed from a record in one place."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rehearsal.scenario.record import KillRecord, Record, epoch


@dataclass(frozen=True)
class Cost:
    """Cost of a node over its lifetime in the world."""

    node: str
    usd_hour: float
    hours: float
    chips: int
    spot: bool
    dated: str

    @property
    def usd(self) -> float:
        """Price of the node's hours."""
        return self.usd_hour * self.hours

    @property
    def chip_hours(self) -> float:
        """Chips times hours."""
        return self.chips * self.hours


def costs(record: Record) -> list[Cost]:
    """Return a line for each node with a known price."""
    return [
        Cost(p.node, p.usd_hour, record.up_s.get(p.node, 0.0) / 3600, p.chips, p.spot, p.dated)
        for p in record.prices
    ]


def interrupted_step(record: Record, kill: KillRecord) -> int:
    """Return the step that a run had reached when it was interrupted, as far as its own events show.

    The kill's record holds what status.json said, which lags by two seconds.
    """
    events = [event for run in record.runs if run.name == kill.run for event in run.events]
    reported = [
        int(event["step"]) for event in events if "step" in event and epoch(event["time"]) <= kill.time
    ]
    return max([kill.step or 0, *reported])


def lost_at(record: Record, kill: KillRecord) -> str:
    """Return the progress at a kill: `interrupted at step 12`, `extraction at 40 shards`, `own`."""
    if kill.shards:
        return f"{kill.run} at {kill.shards} shards"
    step = interrupted_step(record, kill)
    return f"{kill.run} at step {step}" if step else kill.run


def headlines(record: Record) -> list[tuple[str, str]]:
    """Return (label, value) pairs, the most important first."""
    ready = [boot.ready_s for boot in record.boots if boot.ready_s is not None]
    total = sum(cost.usd for cost in costs(record))
    lines = [("duration", minutes(record.end - record.start))]
    if ready:
        lines.append((f"median of {len(ready)} boots to READY", f"{statistics.median(ready):.1f} s"))
    if record.kills:
        lines.append(("kills", str(len(record.kills))))
    lines.append(("requests validated", f"{record.requests.get('validated', 0):,}"))
    if record.served:
        used, served = len(record.used), len(record.served)
        lines.append(("methods called", f"{used} of {served} ({used / served:.0%})"))
    if record.faults:
        seen = sum(1 for fault in record.faults if fault["observed"])
        lines.append(("faults observed", f"{seen} of {len(record.faults)}"))
    if total:
        lines.append(("on Google Cloud", f"${total:,.2f}"))
    return lines


def minutes(seconds: float) -> str:
    """`0:07`, `12:34` or `1:02:03`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"

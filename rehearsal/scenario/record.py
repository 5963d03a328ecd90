"""Record of a rehearsal: facts with times, written as JSON; source of every report.

Times are seconds since the Unix epoch on this machine's clock, which the hosts share.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from rehearsal.errors import RehearsalError

VERSION = 1


@dataclass
class StepRecord:
    """A step of the scenario. `outcome` is `ok` or `failed`; `detail` its result."""

    text: str
    kind: str
    start: float
    end: float
    outcome: str
    detail: str


@dataclass
class Stage:
    """A stage of a boot. `end` is None if the host died in it."""

    name: str
    state: str
    attempt: int
    start: float
    end: float | None


@dataclass
class Boot:
    """A run of the boot script on a worker, as reported by the worker; a boot may have several."""

    node: str
    worker: int
    boot_id: str
    state: str
    stages: list[Stage]

    @property
    def ready_s(self) -> float | None:
        """Seconds from the first stage's start to the last one's end; None if it didn't get there."""
        if self.state != "ready" or not self.stages or self.stages[-1].end is None:
            return None
        return self.stages[-1].end - self.stages[0].start


@dataclass
class KillRecord:
    """A kill: time, kind, and progress of the run: last known step, or committed shards.

    `disk` and `stall` leave the machine running: its boot disk was filled, its job was stopped.
    """

    time: float
    node: str
    how: str
    run: str
    step: int | None = None
    worker: int | None = None
    shards: int | None = None


@dataclass
class RunRecord:
    """A training run: (step, loss, exact loss) in order, its events, its final.json, its page's path."""

    name: str
    losses: list[tuple[int, float, str]]
    events: list[dict[str, Any]]
    final: dict[str, Any]
    page: str = ""  # below the report's folder; empty: none


@dataclass
class Price:
    """Price of a node per hour, by the program's catalog."""

    node: str
    usd_hour: float
    chips: int
    spot: bool
    dated: str


@dataclass
class Check:
    """A claim that was tested, and what was compared."""

    claim: str
    evidence: str


@dataclass
class Record:
    """Record of a scenario. `verdict` is `passed`, `failed` or `interrupted`; `reason` explains the last
    two.
    """

    scenario: str
    title: str
    environment: str
    seed: int
    start: float
    end: float = 0.0
    verdict: str = "running"
    reason: str = ""
    steps: list[StepRecord] = field(default_factory=list)
    boots: list[Boot] = field(default_factory=list)
    kills: list[KillRecord] = field(default_factory=list)
    runs: list[RunRecord] = field(default_factory=list)
    prices: list[Price] = field(default_factory=list)
    up_s: dict[str, float] = field(default_factory=dict)  # node → seconds that it existed
    checks: list[Check] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    requests: dict[str, Any] = field(default_factory=dict)
    served: list[str] = field(default_factory=list)  # methods, enabled or not
    permissions: list[dict[str, Any]] = field(
        default_factory=list
    )  # permissions, with the roles that granted them
    mistakes: list[str] = field(default_factory=list)  # of the emulation's own
    plugin: str = ""
    version: int = VERSION

    @property
    def used(self) -> list[str]:
        """Served methods that were called."""
        methods = self.requests.get("methods", {})
        return [method for method in self.served if methods.get(method, {}).get("validated")]

    def alone(self) -> dict[tuple[str, str, str], list[str]]:
        """By account, role and resource: permissions that no other role of the account granted."""
        alone: dict[tuple[str, str, str], list[str]] = {}
        for permission in self.permissions:
            for role, on in permission["granted_by"]:
                permissions = alone.setdefault((permission["account"], role, on), [])
                if len(permission["granted_by"]) == 1 and permission["permission"] not in permissions:
                    permissions.append(permission["permission"])
        return alone

    def save(self, path: Path) -> None:
        """Write whole or not at all."""
        scratch = path.with_suffix(".part")
        scratch.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")
        scratch.rename(path)

    @classmethod
    def load(cls, path: Path) -> Record:
        """Return the record that `save` wrote; RehearsalError if the file is another."""
        try:
            record = _typed(cls, json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, AttributeError) as broken:
            raise RehearsalError(f"{path} is not a record of a rehearsal: {broken}") from broken
        assert isinstance(record, cls)
        return record


def _typed(hint: Any, value: Any) -> Any:
    """Return parsed JSON as dataclasses and tuples, where the hint has them."""
    arguments = get_args(hint)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{key: _typed(hints.get(key), item) for key, item in value.items()})  # type: ignore[operator]
    if get_origin(hint) is list:
        return [_typed(arguments[0], item) for item in value]
    return tuple(value) if get_origin(hint) is tuple else value


def epoch(rfc3339: str) -> float:
    """Seconds since the epoch."""
    return datetime.fromisoformat(rfc3339).timestamp()


def script_run(status: dict[str, Any]) -> str:
    """Return an id of the boot script's run behind a status object: boot id and start of its first stage."""
    first = status["stages"][0]["start"] if status["stages"] else ""
    return f"{status['boot_id']} {first}"


def boot_from(status: dict[str, Any]) -> Boot:
    """Return the boot of a host's status object (docs/internals/architecture.md, "Boot status")."""
    return Boot(
        status["node"],
        status["worker"],
        status["boot_id"],
        status["state"],
        [
            Stage(
                stage["name"],
                stage["state"],
                stage["attempt"],
                epoch(stage["start"]),
                epoch(stage["end"]) if stage["end"] else None,
            )
            for stage in status["stages"]
        ],
    )

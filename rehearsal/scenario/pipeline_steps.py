"""Steps about runs of the pipeline, and about the alerts of the layer `monitoring`.

They are among the kinds of `steps.py`, and follow its rules. A run is named by the folder of the raw bucket
that was submitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rehearsal.scenario.typed import Typed


@dataclass(frozen=True)
class Submit:
    """Write so many documents, ten of them twice, into a folder of the raw bucket, and then its `_SUBMIT`.

    `text` is written instead of documents; with `marker: false` there is no new `_SUBMIT`, and so no new run.
    With `gib` there is so much beside them, in objects that share their bytes and whose events are lost.
    """

    scalar: ClassVar[str] = "folder"
    folder: str
    documents: int = 100
    text: str = ""
    marker: bool = True
    gib: int = 0

    def __str__(self) -> str:
        much = f", {self.gib} GiB" if self.gib else ""
        return f"{'submit' if self.marker else 'text into'} {self.folder}{much}"

    def check(self) -> Iterator[str]:
        """A folder as `tpu pipeline run` takes it."""
        if not re.fullmatch(r"(?!/)([^/]+/)+", self.folder):
            yield f"folder: {self.folder!r} isn't NAME/"


@dataclass(frozen=True)
class Retry(Typed):
    """`tpu pipeline retry` for the run of a folder; returns once Workflows has the new execution."""

    scalar: ClassVar[str] = "folder"
    folder: str

    def __str__(self) -> str:
        return f"tpu pipeline retry: {self.folder}"


@dataclass(frozen=True)
class Taken:
    """Create a batch of somebody else's, with the id that the next retry of a folder's run gives its own."""

    scalar: ClassVar[str] = "folder"
    folder: str

    def __str__(self) -> str:
        return f"the id of the next batch of {self.folder} is taken"


@dataclass(frozen=True)
class Ends(Typed):
    """Wait until a folder's run has this outcome at this stage; `tpu pipeline status` must print a match.

    `retry` starts it again before. An outcome `running` is waited for until the page matches.
    """

    folder: str
    outcome: str
    at: str
    prints: str = ""
    retry: bool = False
    timeout_s: float = 180.0

    def __str__(self) -> str:
        return f"{'retry' if self.retry else 'wait'}: {self.folder} {self.outcome}, at {self.at}"

    def check(self) -> Iterator[str]:
        """A pattern that is a part of one: lines are those of the page, and it has no flags of its own."""
        try:
            re.compile(f".{self.prints}")
        except re.error as broken:
            yield f"prints: not a regular expression: {broken}"


@dataclass(frozen=True)
class Shard:
    """Delete the first shard that the run of a folder left, or put it back."""

    folder: str
    back: bool = False

    def __str__(self) -> str:
        return f"the first shard of {self.folder} is {'back' if self.back else 'gone'}"


@dataclass(frozen=True)
class Made:
    """What Google's APIs list for the run of a folder: these batches by state, so many slices, no more.

    `slices` counts the creations that were accepted, by audit entries; `executions` are outcomes of all that
    the folder's events and commands started, with `late` one that began when the run had ended.
    """

    folder: str
    batches: tuple[str, ...]
    slices: int = 0
    executions: tuple[str, ...] = ()
    late: bool = False
    timeout_s: float = 60.0

    def __str__(self) -> str:
        return f"of {self.folder} there are {len(self.batches)} batches and {self.slices} slices"


@dataclass(frozen=True)
class Quiet:
    """Wait until no incident is open; those that open later are new."""

    timeout_s: float = 180.0

    def __str__(self) -> str:
        return "wait: no incident is open"


@dataclass(frozen=True)
class Fired(Typed):
    """Wait until each of these alerts has opened one new incident, and closed it; no other alert may have.

    Each must be published to the topic that `subscription` is of, open and closed. In between, the first
    command of its runbook is run as the notification has it, and must print a match; then `mend`, a command
    that ends the fault.
    """

    alerts: dict[str, Any]  # name of the alert → what the command prints
    subscription: str
    mend: str = ""
    clock: float | None = None  # virtual seconds a second until they close
    timeout_s: float = 180.0

    def __str__(self) -> str:
        return f"alerts: {', '.join(self.alerts)}, once each"

    def check(self) -> Iterator[str]:
        """Patterns that can be compiled."""
        for alert, pattern in self.alerts.items():
            try:
                re.compile(pattern)
            except (re.error, TypeError) as broken:
                yield f"alerts.{alert}: not a regular expression: {broken}"

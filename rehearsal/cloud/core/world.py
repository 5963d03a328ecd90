"""State that all emulated services share: project, clock, logs, lags."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rehearsal.cloud.services.caller import Caller
    from rehearsal.cloud.services.functions.runner import Functions
    from rehearsal.cloud.services.monitoring.telemetry import Telemetry
from rehearsal.cloud.core.errors import JsonObject, not_found

log = logging.getLogger(__name__)


class Clock(Protocol):
    """Virtual time: `rate` virtual seconds pass in a real one."""

    rate: float

    def now(self) -> float:
        """Virtual seconds since the Unix epoch."""

    def rfc3339(self) -> str:
        """Now, as `2026-11-20T22:01:58.001010Z`."""

    async def sleep(self, virtual_s: float) -> None:
        """Let so many virtual seconds pass, also when the rate changes meanwhile."""

    async def jump(self, virtual_s: float) -> None:
        """Let so many virtual seconds pass at once."""


@dataclass(frozen=True)
class Lags:
    """How long Google takes to act everywhere on what it has accepted, in real seconds.

    Google says minutes, of grants (https://cloud.google.com/iam/docs/access-change-propagation), of accounts
    (https://cloud.google.com/iam/docs/service-accounts-create), and of APIs in its refusal. These are this
    project's choice: whoever doesn't wait is refused, and a rehearsal stays short.
    """

    grant_s: float = 2.5  # until a changed policy or custom role holds
    account_s: float = 1.5  # until a new service account can be read, named and used
    api_s: float = 2.0  # from the end of the operation that enables an API until it answers


@dataclass
class World:
    """The state that services share.

    `directory` maps full resource names (without API host and version) to their API bodies; it is how a
    node finds its disk and a disk its snapshot. `images` maps a snapshot's or disk's full name to the file
    with its content, where it has one; `provisioned_s` when a disk's throughput last changed. `project`
    and `number` name the one project that exists. `control_planes` holds how those of clusters are (`state`,
    `message`, `nodes`), where clusters have any. `above` says what a project, folder or billing account
    is in, for access; the billing account is the project's. `run_build` runs a build of Cloud Build to its
    end, where there is something to run it with, `run_batch` a batch of Spark; `functions` builds and serves
    functions. `caller` sends what Google's services send to each other; `write_log` keeps what they log.
    `triggers`: the full names of Eventarc's that are ready; `finalized` gets each new object.
    `monotonic_s` is the real clock, in which lags and the lifetimes of tokens count.
    """

    project: str
    number: str
    clock: Clock
    directory: dict[str, JsonObject] = field(default_factory=dict)
    images: dict[str, Path] = field(default_factory=dict)
    provisioned_s: dict[str, float] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    mistakes: list[str] = field(default_factory=list)
    billing_account: str = "billingAccounts/01D4EE-079462-DFD6EC"
    organization: str = "organizations/433637338589"
    above: dict[str, str] = field(default_factory=dict)
    lags: Lags = Lags(0, 0, 0)
    monotonic_s: Callable[[], float] = time.monotonic
    control_planes: dict[str, JsonObject] | None = None
    run_build: Callable[[JsonObject], Awaitable[None]] | None = None
    run_batch: Callable[[JsonObject], Awaitable[None]] | None = None
    functions: Functions | None = None
    triggers: set[str] = field(default_factory=set)
    finalized: Callable[[JsonObject], None] | None = None
    caller: Caller | None = None
    write_log: Callable[[JsonObject], None] | None = None
    unseen: dict[str, float] = field(default_factory=dict)  # full name → when it will show
    record: Callable[[JsonObject], None] | None = None  # takes a log entry of the cloud's own
    publish: Callable[[str, list[JsonObject]], list[str]] | None = None  # messages to a topic of Pub/Sub
    telemetry: Telemetry | None = None

    def __post_init__(self) -> None:
        self.above |= {f"projects/{self.project}": self.organization, self.billing_account: self.organization}

    def show_later(self, name: str, lag_s: float) -> None:
        """Let a new resource be missing for so many real seconds."""
        self.unseen[name] = self.monotonic_s() + lag_s

    def find(self, name: str) -> JsonObject | None:
        """The resource of this full name; None if it doesn't exist, or not yet for all to see."""
        return self.directory.get(name) if self.unseen.get(name, 0.0) <= self.monotonic_s() else None

    def blame(self, where: str, why: BaseException | str) -> None:
        """A mistake of the emulation's own, which proves nothing about a program: it fails a rehearsal."""
        log.error("%s: %s", where, why, exc_info=why if isinstance(why, BaseException) else None)
        self.mistakes.append(f"{where}: {why!r}" if isinstance(why, BaseException) else f"{where}: {why}")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background; the world keeps the task alive and the server cancels it at the end."""
        self.start(work)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """As `spawn`; the task, for who may have to cancel it."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.blame("in the background", error)

    def require(self, name: str) -> JsonObject:
        """The resource of this full name; ApiError 404 if it does not exist."""
        resource = self.find(name)
        if resource is None:
            raise not_found(name)
        return resource

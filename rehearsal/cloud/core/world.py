"""State that all emulated services share: project, clock, logs, lags."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from google_facts import lags
from rehearsal.cloud.core.errors import JsonObject, not_found

log = logging.getLogger(__name__)


class Clock(Protocol):
    """Virtual time: `rate` virtual seconds pass in a real one."""

    rate: float

    def now(self) -> float:
        """Virtual seconds since the Unix epoch."""

    def rfc3339(self) -> str:
        """Return the current time as `2026-11-20T22:01:58.001010Z`."""

    async def sleep(self, virtual_s: float) -> None:
        """Sleep for virtual seconds, also when the rate changes meanwhile."""

    async def jump(self, virtual_s: float) -> None:
        """Advance by virtual seconds at once."""


@dataclass(frozen=True)
class Lags:
    """Delays until changes that Google has accepted hold everywhere, in virtual seconds.

    The defaults are what Google documents (google_facts/lags.toml).
    """

    grant_s: float = lags.GRANT.usual_s  # until a changed policy or custom role holds
    account_s: float = lags.ACCOUNT.usual_s  # until a new service account can be read, named and used
    api_s: float = lags.API.usual_s  # from the end of the operation that enables an API until it answers
    agent_s: float = lags.AGENT.usual_s  # until a new service agent, or its role, counts
    metric_s: float = lags.METRIC.usual_s  # until Monitoring knows a new metric of logs


LAGS = Lags()
"""Google's."""
NO_LAGS = Lags(0, 0, 0, 0, 0)
"""Of a cloud that acts at once everywhere on what it has accepted."""


@dataclass
class World:
    """The state that services share.

    Attributes:
        project, number: the id and the number of the one project that exists.
        clock: virtual time.
        lags: delays before changes hold, on `clock`.
        monotonic_s: the real clock, in which lifetimes of tokens count.
        control_planes: state of clusters' control planes (`state`, `message`, `nodes`) by full name; None if
            clusters have none.
        directory: resources by full name (without API host and version), as their APIs show them.
        private: data of resources that no API shows, by full name.
        images: the file with the content of a snapshot or a disk, by full name.
        limits: quotas of the project, by name and place.
        provisioned_s: time of the last change of a disk's throughput, by full name.
        billing_account, currency: the one account, and its currency.
        groups: members of Google groups, accounts or groups, by address.
        constraints: those of organization policies that are set, each with the values that it allows.
        triggers: full names of Eventarc triggers that are ready.
        unseen: time from which a new resource is visible, by full name.
        above: parent of a project, folder or billing account, for access.
        tasks: work in the background.
        mistakes: errors of the emulation itself.
    """

    project: str
    number: str
    clock: Clock
    lags: Lags = NO_LAGS
    monotonic_s: Callable[[], float] = time.monotonic
    control_planes: dict[str, JsonObject] | None = None
    billing_account: str = "billingAccounts/01D4EE-079462-DFD6EC"
    currency: str = "USD"  # of the billing account
    groups: Mapping[str, Collection[str]] = field(default_factory=dict)
    constraints: dict[str, list[str]] = field(default_factory=dict)
    organization: str = "organizations/433637338589"
    directory: dict[str, JsonObject] = field(default_factory=dict)
    private: dict[str, dict[str, Any]] = field(default_factory=dict)
    images: dict[str, Path] = field(default_factory=dict)
    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    provisioned_s: dict[str, float] = field(default_factory=dict)
    triggers: set[str] = field(default_factory=set)
    unseen: dict[str, float] = field(default_factory=dict)
    above: dict[str, str] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    mistakes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.above |= {f"projects/{self.project}": self.organization, self.billing_account: self.organization}

    def with_id(self, name: str) -> str:
        """Return a full name with the project's id in place of its number."""
        number = f"projects/{self.number}"
        if name == number or name.startswith(f"{number}/"):
            return f"projects/{self.project}{name[len(number) :]}"
        return name

    def show_later(self, name: str, lag_s: float) -> None:
        """Hide a new resource for `lag_s` virtual seconds."""
        self.unseen[name] = self.clock.now() + lag_s

    def find(self, name: str) -> JsonObject | None:
        """Return the resource of this full name; None if it doesn't exist or isn't visible yet."""
        return self.directory.get(name) if self.unseen.get(name, 0.0) <= self.clock.now() else None

    def blame(self, where: str, why: BaseException | str) -> None:
        """Record an error of the emulation itself, which fails a rehearsal."""
        log.error("%s: %s", where, why, exc_info=why if isinstance(why, BaseException) else None)
        self.mistakes.append(f"{where}: {why!r}" if isinstance(why, BaseException) else f"{where}: {why}")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background; the world keeps the task alive and the server cancels it at the end."""
        self.start(work)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run in the background, as `spawn`; return the task, to cancel it."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.blame("in the background", error)

    def require(self, name: str) -> JsonObject:
        """Return the resource of this full name; ApiError 404 if it doesn't exist."""
        resource = self.find(name)
        if resource is None:
            raise not_found(name)
        return resource

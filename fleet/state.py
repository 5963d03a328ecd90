"""What is wanted, what was seen, what was decided: the values that the rooms of a fleet hand one another.

Times are seconds since 1970. A fleet is an item of `tpu:slices` with a count; its members are nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.failures import Failure

TAKEN_AWAY = frozenset({"PREEMPTED", "TERMINATED"})
"""The states in which Google has taken a node's machines away for good; it must be deleted to come back."""


@dataclass(frozen=True)
class Seen:
    """A node as Google lists it.

    Attributes:
        name: its id.
        zone: where it is.
        state: Google's word, such as READY.
        instance: Google's number for it; another one each time that a node of this name is created.
        created_s: when that was.
        labels: its labels.
    """

    name: str
    zone: str
    state: str
    instance: str = ""
    created_s: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ZoneView:
    """One list call: every node of a zone by name, or why there is no answer."""

    nodes: Mapping[str, Seen] | None
    failure: Failure | None = None


@dataclass(frozen=True)
class Word:
    """What a node's workers said last, in the bucket.

    Attributes:
        at_s: when the newest of it was written.
        instance: the machine that wrote it, of the node's number in Google's books; empty if it didn't say.
        boot: `booting`, `ready` or `failed`; empty before the first boot.
        stage: the last stage of the boot that began.
        work: `running`, `done` or `failed`; empty before the first work.
        samples: done so far.
        of_samples: to do in all; 0 where nobody knows.
        shards: committed.
        size_bytes: of them.
    """

    at_s: float
    instance: str = ""
    boot: str = ""
    stage: str = ""
    work: str = ""
    samples: int = 0
    of_samples: int = 0
    shards: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class View:
    """All that was seen in one look.

    Attributes:
        at_s: when.
        zones: by zone.
        words: by node; None where the bucket didn't answer.
        failure: why it didn't.
    """

    at_s: float
    zones: Mapping[str, ZoneView]
    words: Mapping[str, Word] | None
    failure: Failure | None = None


class Action(StrEnum):
    """What is done about a member."""

    LEAVE = "leave"
    WAIT = "wait"  # for Google, or for an answer
    HOLD = "hold"  # there is something to do, but not now, or not before a person has acted
    CREATE = "create"
    REPLACE = "replace"  # delete, see that it is gone, create


class Cause(StrEnum):
    """Why a member is brought back; each has a budget of its own."""

    NEW = "new"
    PREEMPTION = "preemption"
    FAILURE = "failure"


class Condition(StrEnum):
    """How a member is, in one word for people."""

    WORKING = "working"
    DONE = "done"
    STARTING = "starting"
    RECOVERING = "recovering"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Decision:
    """What is done about one member, and why; `instance` is the node's that it is about."""

    node: str
    zone: str
    action: Action
    condition: Condition
    why: str
    cause: Cause | None = None
    instance: str = ""

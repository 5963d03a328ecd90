"""The fault matrix: every request of a fleet's, met by every fault, in the emulated cloud.

A cell arms one fault, sees that it happened, and says what the fleet took it for, what the controller did
then, what was true at Google, and what mended it once the fault was gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from fleet.controller import Controller
from fleet.google import Google
from fleet.observation import Observation
from fleet.store import UnreachableError
from infra.google import client
from infra.google.failures import Failure
from infra.slices.nodes import Node
from tests.fleet.asking import Asking
from tests.fleet.lab import Lab

PASSING = ("429", "500", "503", "reset", "lost answer")  # those that are also tried for one request alone
FAULTS = (*PASSING, "slow", "failed operation", "stock-out", "quota", "403")
STARTERS = ("nodes.create", "nodes.delete")  # what begins an operation
METHODS = (
    "nodes.list", "nodes.get", "nodes.getGuestAttributes", "nodes.delete", "nodes.create", "operations.get",
    "objects.list", "objects.get", "objects.insert",
)  # fmt: skip
OVERCOME, UNSEEN, FINE = "overcome", "seen by the next observation", "nothing to mend"
ZONE, BESIDE = "us-east5-b", "us-central1-b"
_LONGER_THAN_ANY_WAIT_S = 1400.0
_NO_CHIPS = (
    "There is no more capacity in the zone; you can try in another zone where Cloud TPU Nodes are available"
)
_WHAT: dict[str, dict[str, Any]] = {
    "429": {"status": 429, "retry_after_s": 2},
    "500": {"status": 500},
    "503": {"status": 503},
    "reset": {"reset": True},
    "lost answer": {"lost_answer": True},
    "slow": {"delay_s": 1.5},
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
class Meeting:
    """A request, the fault that it meets, and whether that stays until somebody has seen what it led to.

    Attributes:
        method: as Google calls it.
        fault: of FAULTS.
        lasts: False for one request alone.
    """

    method: str
    fault: str
    lasts: bool = True

    @property
    def arranged(self) -> bool:
        """True if the fault is machines that neither start nor end, instead of a rule."""
        return self.fault == "slow" and self.method in STARTERS

    def rule(self) -> dict[str, Any]:
        """The fault, for the front door."""
        what = _WHAT[self.fault]
        if self.fault == "stock-out" and self.method not in STARTERS:
            what = {"status": 429, "message": _NO_CHIPS}
        api = "storage" if self.method.startswith("objects") else "tpu.projects.locations"
        path = f"/locations/{ZONE}/" if api != "storage" else ""
        rule: dict[str, Any] = {"match": {"method": f"{api}.{self.method}", "path": path}, "what": what}
        return rule if self.lasts else {**rule, "times": 1}


@dataclass(frozen=True)
class Cell:
    """Outcome of a fault.

    Attributes:
        method, fault, lasts: see Meeting.
        kind: of the failure; OVERCOME where there was none for the fleet, UNSEEN where its request succeeded
            and what it began didn't.
        then: what the controller did.
        truth: at Google, once its operations had ended, while the fault was still there.
        mended: what it came right with after the fault.
    """

    method: str
    fault: str
    lasts: bool
    kind: str
    then: str
    truth: str
    mended: str


def cell_of(cell: Mapping[str, Any]) -> Meeting:
    """The request and fault that a cell on record is of."""
    return Meeting(cell["method"], cell["fault"], cell["lasts"])


def meetings() -> Iterator[Meeting]:
    """Every fault of every request. What starts no operation has none that fails."""
    for method in METHODS:
        for fault in FAULTS:
            if fault == "failed operation" and method not in STARTERS:
                continue
            if fault in PASSING:
                yield Meeting(method, fault, lasts=False)
            yield Meeting(method, fault)


@contextmanager
def _armed(lab: Lab, node: Node, meeting: Meeting) -> Iterator[str]:
    """A fault in force; at the end it has happened."""
    if meeting.arranged:
        lab.hosts.slow.add(node.name)
        try:
            yield ""
            assert lab.state(node.name) in ("CREATING", "DELETING"), f"{meeting} didn't happen"
        finally:
            lab.hosts.slow.clear()
        return
    rule = lab.cloud.faults.add(meeting.rule())
    observed = 0
    try:
        yield rule
    finally:
        observed = lab.cloud.faults.lift(rule)
    assert observed, f"{meeting} didn't happen"


@contextmanager
def impatient(asker: Google) -> Iterator[list[float]]:
    """It gives Google a second to answer, and doesn't sleep; what it would have slept."""
    slept: list[float] = []
    with (
        mock.patch.object(asker, "_sleep", slept.append),
        mock.patch.object(client, "_TIMEOUT_S", (1.0, 1.0)),
    ):
        yield slept


class Patient:
    """Member that needs the request in question, a healthy one, and the controller of both."""

    def __init__(self, lab: Lab, meeting: Meeting) -> None:
        self.lab, self.meeting = lab, meeting
        self.fleet = lab.fleet()
        by_zone = {member.zone: member for member in self.fleet.members}
        self.subject, self.beside = by_zone[ZONE], by_zone[BESIDE]
        lab.begin_anew()
        lab.create(self.beside)
        self.stood = (lab.node(self.beside.name) or {})["id"]
        self.before = ""
        if meeting.method == "operations.get":
            self._fail_the_first_creation()
        elif meeting != Meeting("nodes.create", "slow"):  # whose machines can't be taken away either
            lab.create(self.subject)
            self.before = (lab.node(self.subject.name) or {})["id"]
            if meeting.method == "nodes.getGuestAttributes":
                lab.says_that_its_boot_failed(self.subject.name)
            else:
                lab.preempt(self.subject.name)
        assert isinstance(self.fleet.google, Asking)
        self.asking: Asking = self.fleet.google
        self.controller: Controller | None = None
        self.reported = False  # what became of a creation that failed

    def _fail_the_first_creation(self) -> None:
        """Make the first creation fail, so that its operation is polled."""
        rule = Meeting("nodes.create", "failed operation", lasts=False).rule()
        self.lab.cloud.faults.add(rule)

    def begin(self) -> Controller:
        """The controller; raises UnreachableError where there can't be one."""
        self.controller = self.lab.controller(self.fleet, [self.subject, self.beside])
        return self.controller

    def right(self) -> bool:
        """Return whether the member exists again, and the controller has seen it."""
        node = self.lab.node(self.subject.name) or {}
        back = node.get("state") == "READY" and node.get("id") != self.before
        return bool(back and self.controller and not self.controller.state.open(self.subject.key))

    def trouble(self, observation: Observation | None) -> Failure | None:
        """Return the failure that the controller has seen, if any."""
        own = observation.failures.get(self.subject.key) if observation else None
        if own and self.meeting.method == "operations.get":
            self.reported, own = True, None
        for result in (
            own,
            observation.view.zones[ZONE].failure if observation else None,
            observation.view.failure if observation else None,
        ):
            if result:
                return result
        nothing_done = observation is None or any("no action taken" in event for event in observation.events)
        if nothing_done or (self.meeting.method == "operations.get" and not self.reported):
            return next(iter(self.asking.troubles[-1:]), None)
        return None


def meet(lab: Lab, meeting: Meeting) -> Cell:
    """Let a request meet a fault; return the outcome."""
    patient = Patient(lab, meeting)
    subject = patient.subject
    looks: list[Observation] = []
    failure: Failure | None = None
    with impatient(patient.asking) as slept:
        with _armed(lab, subject, meeting) as rule:
            try:
                failure = _live_with_it(patient, rule, looks)
            except UnreachableError:
                failure = patient.trouble(None)
            lab.settle()
            truth = lab.state(subject.name) or "no node"
        if meeting.fault == "429":
            assert 2.0 in slept, "Retry-After is kept to"
        then = _then(patient, looks, failure)
        through = patient.right() or patient.reported
        kind = str(failure.kind) if failure else OVERCOME if through else UNSEEN
        mended = FINE if kind == OVERCOME else _mend(patient)
    assert lab.state(patient.beside.name) == "READY"
    assert (lab.node(patient.beside.name) or {})["id"] == patient.stood, "nobody touches a healthy node"
    assert not lab.hosts.healthy_deleted, lab.hosts.healthy_deleted
    return Cell(meeting.method, meeting.fault, meeting.lasts, kind, then, truth, mended)


def _live_with_it(patient: Patient, rule: str, looks: list[Observation]) -> Failure | None:
    """Steps under the fault until the controller has seen it, or has seen nothing of it in three steps."""
    lab, controller = patient.lab, patient.begin()
    observed = 0
    while observed < 3 and len(looks) < 60:
        looks.append(controller.step())
        controller.actor.wait()  # type: ignore[attr-defined]
        lab.settle()
        if failure := patient.trouble(looks[-1]):
            return failure
        observed += _happened(lab, patient, rule)
        if patient.reported or (observed and patient.right()):
            break
    return None


def _happened(lab: Lab, patient: Patient, rule: str) -> bool:
    if not rule:
        return lab.state(patient.subject.name) in ("CREATING", "DELETING")
    report = {item["id"]: item for item in lab.cloud.faults.report()}
    entry = report[rule]
    return bool(entry["observed"]) and (patient.meeting.lasts or patient.right() or entry["matched"] > 1)


def _then(patient: Patient, looks: list[Observation], failure: Failure | None) -> str:
    if patient.controller is None or not any(observation.begun for observation in looks):
        return "starts nothing"
    if failure and patient.meeting.method == "operations.get":
        return "retries at each observation"
    refusal = patient.controller.state.refusal(patient.subject.key, ZONE)
    if refusal.stopped:
        return "held for manual action"
    return "retries with backoff" if refusal.count else "continues"


def _mend(patient: Patient) -> str:
    """Repair after the fault: each request that changes a node is sent once, and none fails.

    That of a creation that had failed by itself is the one exception.
    """
    lab = patient.lab
    if patient.controller is None:
        controller, by = patient.begin(), "running the command again"
    else:
        controller, by = patient.controller, "later observations"
    if any(refusal.stopped for refusal in controller.state.refusals.values()):
        controller.state.retry_now()
        by = "later observations, after manual action"
    lab.ahead_s += _LONGER_THAN_ANY_WAIT_S
    begun = len(patient.asking.changes)
    looks = lab.keep(controller, lambda _: patient.right())
    failures = [observation.failures for observation in looks[1:] if observation.failures]
    assert len(failures) <= (patient.meeting.method == "operations.get"), failures
    requests = [change for change in patient.asking.changes[begun:] if "/nodes" in change]
    assert len(requests) == len({request.split()[0] for request in requests}), requests
    return by

"""Keep the cluster's slices: the controller's daemon, which does what `decide` says, look after look.

A look reads Slurm's nodes and the fleet's records, acts, and lets the fleet's controller create and delete.
Whatever fails in a look is logged, and done by a later one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet.adhoc import ID, Item
from fleet.controller_state import ControllerState
from fleet.ending import disputed
from fleet.ending import over as ended
from fleet.google import Google
from fleet.model import TAKEN_AWAY, Action, Claim, Decision, ObservedNode
from fleet.owned import Outcome, OwnedFleets
from infra.engine.prices import BudgetError
from infra.errors import InfraError, SettingsError
from infra.google.failures import Kind
from infra.layers.slurm import names, slices
from infra.layers.slurm.slices import Reached
from infra.settings.schema import Settings
from slurm import decide
from slurm.cluster import Cluster
from slurm.decide import End, Slice, SliceStatus, Tell, Update, Want, World
from slurm.errors import SlurmError
from slurm.jobs import queued
from slurm.machine import call
from slurm.nodes import MOST_BYTES, listed, nodes

LOOK_S, _SHORT_S = 10.0, 2.0
"""Pause between looks, unless a request ends it; after a look that began something. It is less than the
SuspendTimeout of slurm.conf, after which Slurm may ask for a host again."""
_HELD_S, _STOPPED_S = 120.0, 900.0  # before jobs are let onto nodes whose slice couldn't be made
_REQUEST_POLL_S = 0.5
_LOG = logging.getLogger(__name__)


class Slurm(Protocol):
    """Slurm's nodes and jobs."""

    def read(self) -> Cluster:
        """Return nodes, and jobs where the queue can be read. Raises SlurmError without the nodes."""
        ...

    def update(self, update: Update) -> None:
        """Update nodes. Raises SlurmError."""
        ...


class Scontrol:
    """Slurm by its own programs."""

    def __init__(self) -> None:
        self._unseen = ""  # why the queue wasn't seen, as it was logged

    def read(self) -> Cluster:
        """See `Slurm`."""
        text = call(["scontrol", "show", "node", "--oneliner"])
        if len(text) > MOST_BYTES:
            raise SlurmError(f"scontrol show node: more than {MOST_BYTES >> 20} MiB")
        known = nodes(text)
        try:
            jobs, problem = queued(), ""
        except SlurmError as error:  # slices come and go by the nodes
            jobs, problem = None, str(error)
        if problem and problem != self._unseen:
            _LOG.warning("the queue wasn't seen: %s", problem)
        self._unseen = problem
        return Cluster(known, jobs)

    def update(self, update: Update) -> None:
        """See `Slurm`."""
        line = ["scontrol", "update", f"NodeName={listed(update.hosts)}", f"State={update.state}"]
        if update.reason:
            line.append(f"Reason={_one_line(update.reason)}")
        call(line)


def _one_line(reason: str) -> str:
    """Return a reason as Slurm keeps one: a line, without the fix, which is in the log."""
    head = " ".join(reason.partition("\n")[0].split()).replace('"', "'")
    return head[:250]


def declared(settings: Settings, reached: Reached) -> list[Slice]:
    """Return the slices of the settings, as `decide` takes them."""
    static = set(slices.static(settings))
    return [
        Slice(
            slice_.name, tuple(slices.hosts(settings, slice_)), slices.record(settings, slice_, reached),
            slice_ in static,
        )
        for slice_ in slices.slices(settings)
    ]  # fmt: skip


@dataclass(frozen=True)
class _Hold:
    """Time until which a slice isn't asked for again."""

    until_s: float
    why: str


class Keeper:
    """Keeper of one cluster's slices."""

    def __init__(
        self,
        settings: Settings,
        google: Google,
        stack: str,
        reached: Reached,
        slurm: Slurm,
        now: Callable[[], float] = time.monotonic,
    ):
        self._slices = declared(settings, reached)
        self._fleets = OwnedFleets(google, stack, settings.environment, names.owner(settings))
        self._slurm, self._now = slurm, now
        self._last: Outcome | None = None
        self._holds: dict[str, _Hold] = {}
        self._wanted = False  # a record was written since the last look of the fleet's controller
        self._reported: dict[str, str] = {}

    def look(self, known: Cluster | None) -> bool:
        """Look once, and act; return whether something was begun. Whatever fails is logged.

        `known`: a reading of Slurm; None: it doesn't answer, and the fleet alone is looked at.
        """
        acted = read = False
        try:
            acted = known is not None and self._settle(known)
            read = known is not None
            self._once("records", "")
        except InfraError as error:
            self._once("records", str(error))
        try:
            # After the records: those that are new begin at once.
            self._last = self._fleets.look(
                self._event, manual=self._wanted, recovers=_first_time, observes=True, lists=not read
            )
            self._wanted = False
            self._hold()
            self._once("fleet", "")
        except InfraError as error:
            self._last = None  # what was seen earlier says nothing of now
            self._once("fleet", str(error))
        return acted

    def _settle(self, known: Cluster) -> bool:
        """Read the records, and do what follows from Slurm's nodes and jobs."""
        records = self._fleets.records()
        fleets = records.read()
        owned = {name for name, item in fleets.items() if self._fleets.owns(item)}
        refused = {name: hold.why for name, hold in self._holds.items() if hold.until_s > self._now()}
        seen = self._seen(fleets)
        world = World(known.nodes, fleets, owned, records.over, seen, refused, records.unread, known.running)
        actions = decide.decide(self._slices, world)
        wants = [action for action in actions if isinstance(action, Want)]
        if wants:
            self._want(wants)
        for action in actions:
            try:
                match action:
                    case End(name, why):
                        _LOG.info("%s: ends: %s", name, why)
                        self._fleets.end(name, why)
                    case Update():
                        _LOG.info("%s: %s %s", ",".join(action.hosts), action.state, action.reason)
                        self._slurm.update(action)
                    case Tell(name, text):
                        self._once(name, text)
            except InfraError as error:
                _LOG.warning("%s: %s", type(action).__name__, error)
        return any(not isinstance(action, Tell) for action in actions)

    def _want(self, wants: Sequence[Want]) -> None:
        """Write the records of slices, as many as budget and rules allow. Whatever fails is logged."""
        records = self._fleets.records()
        try:
            self._fleets.want(records, records.read(), [want.item for want in wants])
        except (BudgetError, SettingsError) as error:
            if len(wants) > 1:
                half = len(wants) // 2
                self._want(wants[:half])
                self._want(wants[half:])
                return
            self._holds[wants[0].slice] = _Hold(self._now() + _HELD_S, str(error).partition("\n")[0])
            _LOG.warning("Want: %s", error)
            return
        except InfraError as error:
            _LOG.warning("Want: %s", error)
        else:
            _LOG.info("%s: wanted by Slurm", ", ".join(want.slice for want in wants))
        self._wanted = True

    def _seen(self, fleets: Mapping[str, Item]) -> dict[str, SliceStatus]:
        """Return what the fleet's controller saw last, of slices whose record is still the same."""
        if (last := self._last) is None:
            return {}
        nodes = {member.key: observed for member, observed in last.observation.nodes}
        return {
            item.member.slice: _seen(last, item, nodes.get(item.member.key))
            for item in last.observation.decisions
            if item.action is not Action.WAIT or item.member.key in nodes
            if fleets.get(item.member.slice, {}).get(ID) == last.fleet.adhoc[item.member.slice].get(ID)
        }

    def _hold(self) -> None:
        """Note which slices couldn't be made, and for how long jobs shall take others."""
        if self._last is None:
            return
        living = {member.key for member, _ in self._last.observation.nodes}
        for item in self._last.observation.decisions:
            name, key = item.member.slice, item.member.key
            elsewhere = key not in living and self._last.observation.view.node(item.node, item.zone)
            self._once(f"node of {name}", f"{item.node}: {item.why}" if elsewhere else "")
            if key in living:
                self._holds.pop(name, None)
                continue
            refusal = self._last.state.refusal(key, item.member.zone)
            why = (refusal.why or item.why).partition("\n")[0]
            if refusal.stopped:
                self._holds[name] = _Hold(self._now() + _STOPPED_S, why)
            elif item.action is Action.HOLD and name not in self._last.observation.unwanted:
                left_s = refusal.not_before_s - self._last.observation.view.at_s
                if refusal.kind is Kind.STOCK_OUT:
                    self._holds[name] = _Hold(self._now() + max(left_s, _HELD_S), why)
                elif left_s <= 0:  # the budget, or a bundle that doesn't boot
                    self._holds[name] = _Hold(self._now() + _HELD_S, why)

    def _event(self, text: str) -> None:
        _LOG.info("%s", text)

    def _once(self, topic: str, text: str) -> None:
        if text != self._reported.get(topic, ""):
            self._reported[topic] = text
            if text:
                _LOG.warning("%s", text)


def _first_time(state: ControllerState, key: str) -> bool:
    """Return whether a member may be created: a lost one comes again when a job asks for it again."""
    return state.open(key) is not None or state.last_back(key) is None


def _seen(last: Outcome, item: Decision, observed: ObservedNode | None) -> SliceStatus:
    key = item.member.key
    if observed is None:
        was_there = last.state.last_back(key) is not None and last.state.open(key) is None
        if was_there and (other := last.observation.view.node(item.node, item.zone)):
            return SliceStatus(True, other.state == "READY")  # its hosts may run on, whoever has it now
        gone = was_there and item.action in (Action.CREATE, Action.HOLD)
        return SliceStatus(lost="Google has its node no more" if gone else "")
    ready = observed.state == "READY"
    if observed.state in TAKEN_AWAY:
        return SliceStatus(True, ready, lost=f"Google says {observed.state}")
    claims: dict[Claim, Collection[Decision]] = {}
    claims |= {item.claim: [item]} if item.claim is not Claim.NONE else dict(ended([item]))
    claims.pop(Claim.DONE, None)
    if claims and not disputed(last.fleet, claims, last.observation.view.at_s):
        silent = item.claim is Claim.SILENT
        return SliceStatus(True, ready, lost=item.why if silent else "", failed="" if silent else item.why)
    return SliceStatus(True, ready)


Beside = Callable[[Cluster], object]
"""What else follows from a reading of Slurm."""


def keep(
    keeper: Keeper,
    slurm: Slurm,
    requests: Path,
    over: Callable[[], bool],
    sleep: Callable[[float], None],
    beside: Sequence[Beside] = (),
    watch: Callable[[Cluster | None], object] = lambda _: None,
) -> None:
    """Look until `over`: after each request, and every 10 s.

    Args:
        keeper: of the slices.
        slurm: read once a look.
        requests: folder of Slurm's requests.
        over: ends it.
        sleep: pauses.
        beside: done before the keeper's look, which may take long, with the same reading.
        watch: looks behind the keeper's look, also where Slurm doesn't answer.
    """
    silent = ""
    while not over():
        taken(requests)
        known, problem = None, ""
        try:
            known = slurm.read()
        except SlurmError as error:
            problem = str(error)
        if problem and problem != silent:
            _LOG.warning("%s", problem)
        silent = problem
        if known:
            for part in beside:
                part(known)
        pause_s = _SHORT_S if keeper.look(known) else LOOK_S
        watch(known)
        while pause_s > 0 and not over() and not any(requests.glob("*.json")):
            sleep(min(_REQUEST_POLL_S, pause_s))
            pause_s -= _REQUEST_POLL_S


def taken(folder: Path) -> Sequence[str]:
    """Log the requests and remove them; return their files' names. States of nodes say what is needed."""
    files = sorted(folder.glob("*.json"))
    for file in files:
        try:
            request = json.loads(file.read_text("utf-8"))
            jobs = ", ".join(str(job["job"]) for job in request.get("jobs", ()))
            _LOG.info("Slurm: %s %s%s", request["verb"], request["hosts"], f" for job {jobs}" if jobs else "")
        except (OSError, ValueError, KeyError, TypeError) as error:
            _LOG.warning("%s isn't a request: %s", file.name, error)
        file.unlink(missing_ok=True)
    return [file.name for file in files]

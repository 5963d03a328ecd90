"""An environment read by a command: settings, selected members, stack, Google."""

import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

from fleet.adhoc import (
    ID,
    AdHoc,
    Item,
    held,
    in_file,
    replaced,
    require_down,
    require_same_slices,
    slices,
    twice_called,
    wanted,
)
from fleet.controller import Controller
from fleet.decide import Limits
from fleet.errors import FleetError, FleetInputError
from fleet.google import Google
from fleet.model import ObservedNode, Owner
from fleet.named import NamedSlices
from fleet.recorded import FleetRecords
from fleet.request import FleetCommand
from fleet.store import BucketStore
from fleet.zones import Answer, NodeRequest, Verb, Zones
from infra.core import names
from infra.core.layer import up_command
from infra.engine.named import LAYER, StackState, read_stack
from infra.engine.prices import within_budget
from infra.engine.settings import from_file
from infra.errors import InfraError, SettingsError
from infra.google.client import RequestError
from infra.layers.storage.names import controller_bucket
from infra.layers.storage.settings import StorageSettings
from infra.layers.tpu.request import member_request
from infra.settings.schema import FleetSettings, Settings
from infra.slices.names import member_labels
from infra.slices.nodes import Node, nodes
from infra.slices.settings import TpuSettings


@dataclass(frozen=True)
class Environment:
    """Input of every command.

    Attributes:
        adhoc: fleets outside the settings file, by name.
        records: by which they were read.
        unread: why a record isn't followed, by the fleet's name.
        twice: names of ad hoc fleets that the settings file has, too.
    """

    settings: Settings
    members: tuple[Node, ...]
    google: Google
    stack: StackState
    adhoc: dict[str, Item] = field(default_factory=dict)
    records: AdHoc | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    twice: Sequence[str] = ()

    @property
    def saved(self) -> AdHoc:
        """The records of the ad hoc fleets, to be written on the generations that were read."""
        assert self.records is not None, "read from a bucket"
        return self.records

    def add(self, name: str) -> None:
        """Write the record of an ad hoc fleet that a command asks for.

        Raises `BudgetError` or `ConcurrentChangeError`.
        """
        self.adhoc[name] = add(self.settings, self.saved, self.adhoc[name])

    def _records(self) -> FleetRecords:
        """Return the records of the members, to be read at each look."""
        others = self.records.others if self.records else ()
        return FleetRecords(self._present(), self.adhoc, self.members, others)

    def _present(self) -> AdHoc:
        """Return a reader of the records as they are now, which leaves the generations of `saved` alone."""
        if self.records is not None:
            return self.records.again()
        return AdHoc(self.google, self.stack.id, self.settings.environment)

    def refused(self, members: Sequence[Node], *, unheld: bool) -> dict[str, str]:
        """Return why members aren't created now, by key: the budget, or the stack for named slices.

        Args:
            members: to be created.
            unheld: create named slices that the stack doesn't hold.
        """
        if dear := self._over_budget():
            return dict.fromkeys((member.key for member in members), dear)
        named = [member for member in members if member.member is None]
        if unheld or not named:
            return {}
        try:
            stack = read_stack(self.settings.environment)
            present = stack.slices | (stack.held or {}).keys()
            command = up_command(LAYER, self.settings.environment)
            why = f"the stack doesn't hold it: not created\n    fix: {command}, or take it out of the file"
        except InfraError as error:
            present, why = frozenset(), f"whether the stack holds it isn't known: {error}"
        return {member.key: why for member in named if member.name not in present}

    def _over_budget(self) -> str:
        """Return `over_budget` with the ad hoc fleets of now; if they can't be read, those that were read."""
        name = self.settings.environment
        if self.settings[FleetSettings].dollars_per_hour is None or self.records is None:
            return over_budget(self.settings)
        try:
            present = self.records.again().read()
            return over_budget(from_file(name, slices=slices({**self.adhoc, **present}.values())))
        except InfraError:  # reported by whoever follows the settings
            return over_budget(self.settings)

    @property
    def owner(self) -> Owner:
        """The owner of this stack's nodes."""
        return Owner(names.labels(self.settings.environment, LAYER), self.stack.id, self.stack.held)

    @property
    def limits(self) -> Limits:
        """Limits of the settings."""
        fleet = self.settings[FleetSettings]
        return Limits(fleet.preemptions_per_day, fleet.failures_per_day, fleet.heartbeat_timeout_s)

    def all_nodes(self) -> list[ObservedNode]:
        """Nodes of this stack in any zone, orphans included. Raises RequestError."""
        owner = self.owner
        return [observed for observed in self.google.all_nodes() if owner.owns(observed)]

    def follow(self, controller: Controller) -> None:
        """Make a controller keep these members by these settings."""
        assert isinstance(controller.actor, _ByKind)
        unheld = controller.actor.unheld
        controller.follow(
            self.members, nodes(self.settings), self.spec, self._records(), self.unread,
            partial(self.refused, unheld=unheld),
        )  # fmt: skip
        controller.actor.environment = self

    def controller(
        self,
        *,
        lead: bool = False,
        updates: bool = True,
        manual: bool = False,
        unheld: bool = False,
        brief: bool = False,
    ) -> Controller:
        """Return a controller of the members.

        Args:
            lead: take the lease at once; else it observes until `Controller.lead`.
            updates: give living members with earlier metadata the present one.
            manual: a user requests the attempts: zones that refused are retried.
            unheld: create named slices that the stack doesn't hold, too.
            brief: the lease is held for seconds at a time.
        """
        try:
            zones = {observed.zone for observed in self.all_nodes()}
        except RequestError:
            zones = set()  # a zone is unreachable; those of the settings are observed all the same
        return Controller(
            self.members, self.google, _ByKind(self, unheld),
            BucketStore(self.google, self.stack.id, brief=brief),
            self.limits, self.owner,
            everyone=nodes(self.settings), zones=zones, spec=self.spec if updates else None,
            lead=lead, manual=manual, records=self._records(), unread=self.unread,
            refused=partial(self.refused, unheld=unheld),
        )  # fmt: skip

    def body(self, member: Node) -> Mapping[str, Any]:
        """Return the request body that creates a member."""
        assert member.member is not None, "Pulumi makes named slices"
        environment = self.settings.environment
        owned = member_labels(environment, member.slice, member.member, self.stack.id)
        labels = {**member.labels, **owned, "bundle": member.bundle_label}
        body = member_request(self.settings, member, labels)
        if record := self.adhoc.get(member.slice, {}).get(ID):
            body["labels"]["record"] = record
        content = json.dumps(body["metadata"], sort_keys=True)
        body["labels"]["spec"] = sha256(content.encode()).hexdigest()[:12]
        return body

    def spec(self, member: Node) -> str:
        """Return the label `spec`, a hash of a member's metadata."""
        key = member.key, member.zone, member.name
        if key not in self._specs:
            self._specs[key] = str(self.body(member)["labels"]["spec"])
        return self._specs[key]

    @cached_property
    def _specs(self) -> dict[tuple[str, str, str], str]:
        return {}


class _ByKind:
    """Create members through the API and named slices through Pulumi; delete both through the API."""

    def __init__(self, environment: Environment, unheld: bool):
        self.environment, self.unheld = environment, unheld  # its settings create new nodes
        self._zones = Zones(
            environment.google, environment.owner, lambda member: self.environment.body(member), time.time,
            environment.settings[FleetSettings].heartbeat_timeout_s,
        )  # fmt: skip
        self._named = NamedSlices(environment.settings.environment, unheld)

    def begin(self, request: NodeRequest) -> None:
        """See `zones.Actor`."""
        named = request.verb is Verb.CREATE and request.node.member is None
        (self._named if named else self._zones).begin(request)

    def ended(self) -> list[Answer]:
        """See `zones.Actor`."""
        return [*self._zones.ended(), *self._named.ended()]


def add(settings: Settings, records: AdHoc, item: Item) -> Item:
    """Write and return the record of an ad hoc fleet; `settings` have its slices.

    Raises:
        BudgetError: with it all slices exceed the budget; nothing was written.
        ConcurrentChangeError: there is another record by now.
    """
    within_budget(settings)
    return records.keep(item["name"], item)


def over_budget(settings: Settings) -> str:
    """Return why nothing is created: all slices together exceed the budget; empty if they don't."""
    try:
        within_budget(settings)
    except InfraError as error:
        return f"nothing is created: {error}"
    return ""


def opened(
    request: FleetCommand,
    before: Environment | None = None,
    *,
    allow_empty: bool = False,
    saved: AdHoc | None = None,
) -> Environment:
    """Read an environment: settings, stack and ad hoc fleets, restricted to the requested members.

    Args:
        request: the command.
        before: an earlier reading, whose stack and ad hoc fleet are kept.
        allow_empty: accept an environment without members, whose nodes are all orphans.
        saved: reader of the records; by default `before`'s.

    Raises:
        FleetError: the flags select no members, or a fleet that has ended or whose record can't be followed,
            or describe another fleet than the one of that name.
        InfraError: the settings or the stack can't be read.
    """
    settings = from_file(request.environment)
    google, stack = (
        (before.google, before.stack) if before else (google_of(settings), read_stack(request.environment))
    )
    if saved is None:
        saved = before.saved if before else AdHoc(google, stack.id, request.environment)
    of_file = {item.name for item in settings[TpuSettings].slices}
    settings, fleets, unread = with_records(settings, saved)
    if request.adhoc and before is None:
        name = request.adhoc["name"]
        require_read(unread, [name])
        if name not in fleets:
            if name in of_file:
                raise FleetInputError(in_file(request.environment, name, "--slice"))
            require_down(request.environment, name, stack.slices, "--slice")
        fleets[name] = _added(request, fleets.get(name), request.adhoc)
        settings = from_file(request.environment, slices=slices(fleets.values()))
    require_read(unread, request.slices)
    for name in sorted({*request.slices} & saved.over.keys() - fleets.keys() - of_file):
        fix = f"nothing is left of it; tpu fleet list {request.environment}, for the others"
        raise FleetInputError(f"{name} has ended ({saved.over[name]})\n    fix: {fix}")
    twice = sorted(fleets.keys() & of_file)
    if before is None:
        for line in (*(twice_called(request.environment, name) for name in twice), *unread.values()):
            print(line, file=sys.stderr)
    # The flags of an ad hoc fleet describe it; those of others select members.
    narrowed = FleetCommand(request.environment, (request.adhoc["name"],)) if request.adhoc else request
    members = selected(settings, narrowed)
    if not members and not allow_empty:
        fix = "tpu:slices, or --tpu-type, --zones and --workers-per-zone"
        raise FleetInputError(f"Pulumi.{request.environment}.yaml lists no slices\n    fix: {fix}")
    return Environment(settings, members, google, stack, fleets, saved, unread, twice)


def with_records(settings: Settings, saved: AdHoc) -> tuple[Settings, dict[str, Item], dict[str, str]]:
    """Read the ad hoc fleets; return the settings with them, the fleets, and why others aren't followed.

    Raises FleetError if the bucket doesn't answer.
    """
    fleets: dict[str, Item] = {**saved.read()}
    unread = dict(saved.unread)
    if not fleets:
        return settings, fleets, unread
    try:
        return from_file(settings.environment, slices=slices(fleets.values())), fleets, unread
    except SettingsError:
        pass
    for name, item in [*fleets.items()]:
        try:
            from_file(settings.environment, slices=slices([item]))
        except SettingsError as error:
            del fleets[name]
            unread[name] = f"the record of {name} isn't followed: {error}"
    return from_file(settings.environment, slices=slices(fleets.values())), fleets, unread


def require_read(unread: Mapping[str, str], names: Collection[str]) -> None:
    """Raise FleetError if the record of one of these fleets can't be followed."""
    if problems := [unread[name] for name in names if name in unread]:
        raise FleetError("\n".join(problems))


def _added(request: FleetCommand, existing: Item | None, item: Item) -> Item:
    """Return a requested ad hoc fleet, or the record of the same one.

    Raises FleetError if its name is that of another fleet, or of another program without `--replace`.
    """
    if existing is None:
        return item
    require_same_slices(request.environment, existing, item, "--slice")
    if wanted(existing) == item:
        return existing
    if not request.replace:
        raise FleetInputError(
            f"{held(existing)}\n    fix: --slice ANOTHER, or --replace, which ends that program"
        )
    return replaced(existing, item)


def selected(settings: Settings, request: FleetCommand) -> tuple[Node, ...]:
    """Return the members of the settings that a request selects.

    Raises:
        FleetError: the file lacks a name or zone, or has fewer members in a zone than requested.
    """
    everyone, file = nodes(settings), f"Pulumi.{settings.environment}.yaml"
    problems = [
        f"{flag} {value}: {file} has none; it has {', '.join(sorted(known)) or 'no slices'}"
        for flag, values, known in (
            ("--slice", request.slices, {member.slice for member in everyone}),
            ("--zones", request.zones, {member.home for member in everyone}),
        )
        for value in values
        if value not in known
    ]
    if problems:
        problems.append(f"    fix: correct the flag, or add it to tpu:slices in {file}")
        raise FleetInputError("\n".join(problems))
    members = [
        member
        for member in everyone
        if member.slice in (request.slices or (member.slice,))
        and member.home in (request.zones or (member.home,))
    ]
    most = request.workers_per_zone
    if most is None:
        return tuple(members)
    by_zone: dict[str, list[Node]] = {}
    for member in members:
        by_zone.setdefault(member.home, []).append(member)
    for zone, several in by_zone.items():
        if len(several) < most:
            fix = f"a larger count in tpu:slices of {file}; a fleet's members take turns over its zones"
            raise FleetInputError(
                f"--workers-per-zone {most}: {file} has {len(several)} in {zone}\n    fix: {fix}"
            )
    return tuple(member for several in by_zone.values() for member in several[:most])


def google_of(settings: Settings) -> Google:
    """Return a client of Google with the current login."""
    return Google(settings.project, settings[StorageSettings].bucket_name, controller_bucket(settings))

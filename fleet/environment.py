"""An environment read by a command: settings, selected members, stack, Google."""

import json
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from fleet.adhoc import PHASE, AdHoc, Item, Phase, slices, wanted
from fleet.controller import Controller
from fleet.decide import Limits
from fleet.errors import FleetError
from fleet.google import Google
from fleet.model import ObservedNode, Owner
from fleet.named import NamedSlices
from fleet.request import FleetCommand
from fleet.store import BucketStore
from fleet.zones import Answer, NodeRequest, Verb, Zones
from infra.core import names
from infra.engine.named import LAYER, StackState, read_stack
from infra.engine.settings import from_file
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
    """Input of every command."""

    settings: Settings
    members: tuple[Node, ...]
    google: Google
    stack: StackState
    adhoc: Mapping[str, Item] = field(default_factory=dict)  # fleets outside the settings file, by name
    records: AdHoc | None = None  # by which they were read

    @property
    def saved(self) -> AdHoc:
        """The records of the ad hoc fleets, to be written on the generations that were read."""
        assert self.records is not None, "read from a bucket"
        return self.records

    def unwanted(self) -> dict[str, str]:
        """Return ad hoc fleets that aren't to be created, with the reason: their record, as it is now.

        A fleet that this command has yet to add has no record.
        """
        result = {}
        present = AdHoc(self.google, self.stack.id)
        for name in sorted({member.slice for member in self.members}):
            if PHASE not in (item := self.adhoc.get(name, {})):
                continue
            try:
                record = present.record(name)
            except FleetError as error:
                result[name] = f"whether it is wanted isn't known: {error}"
                continue
            if record is None or record[PHASE] is not Phase.WANTED:
                result[name] = f"its record is {record[PHASE] if record else 'gone'}: nothing is created"
            elif record != item:
                result[name] = "its record has changed: nothing is created by the earlier one"
        return result

    @property
    def owner(self) -> Owner:
        """The owner of this stack's nodes."""
        return Owner(names.labels(self.settings.environment, LAYER), self.stack.id, self.stack.held)

    @property
    def limits(self) -> Limits:
        """Limits of the settings."""
        fleet = self.settings[FleetSettings]
        return Limits(fleet.preemptions_per_day, fleet.failures_per_day, fleet.heartbeat_timeout_s)

    @cached_property
    def all_nodes(self) -> list[ObservedNode]:
        """Nodes of this stack in any zone, orphans included. Raises RequestError."""
        owner = self.owner
        return [observed for observed in self.google.all_nodes() if owner.owns(observed)]

    def follow(self, controller: Controller) -> None:
        """Make a controller keep these members by these settings."""
        controller.follow(self.members, nodes(self.settings), self.spec, self.unwanted)
        assert isinstance(controller.actor, _ByKind)
        controller.actor.environment = self

    def controller(self, *, lead: bool = False, updates: bool = True, manual: bool = False) -> Controller:
        """Return a controller of the members.

        Args:
            lead: take the lease at once; else it observes until `Controller.lead`.
            updates: give living members with earlier metadata the present one.
            manual: a user requests the attempts: zones that refused are retried.
        """
        try:
            zones = {observed.zone for observed in self.all_nodes}
        except RequestError:
            zones = set()  # a zone is unreachable; those of the settings are observed all the same
        return Controller(
            self.members, self.google, _ByKind(self), BucketStore(self.google, self.stack.id), self.limits,
            self.owner,
            everyone=nodes(self.settings), zones=zones, spec=self.spec if updates else None,
            lead=lead, manual=manual, unwanted=self.unwanted,
        )  # fmt: skip

    def body(self, member: Node) -> Mapping[str, Any]:
        """Return the request body that creates a member."""
        assert member.member is not None, "Pulumi makes named slices"
        environment = self.settings.environment
        owned = member_labels(environment, member.slice, member.member, self.stack.id)
        labels = {**member.labels, **owned, "bundle": member.bundle_label}
        body = member_request(self.settings, member, labels)
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

    def __init__(self, environment: Environment):
        self.environment = environment  # its settings create new nodes
        self._zones = Zones(
            environment.google, environment.owner, lambda member: self.environment.body(member), time.time,
            environment.settings[FleetSettings].heartbeat_timeout_s,
        )  # fmt: skip
        self._named = NamedSlices(environment.settings.environment)

    def begin(self, request: NodeRequest) -> None:
        """See `controller.Actor`."""
        named = request.verb is Verb.CREATE and request.node.member is None
        (self._named if named else self._zones).begin(request)

    def ended(self) -> list[Answer]:
        """See `controller.Actor`."""
        return [*self._zones.ended(), *self._named.ended()]


def opened(
    request: FleetCommand, before: Environment | None = None, *, allow_empty: bool = False
) -> Environment:
    """Read an environment: settings, stack and ad hoc fleets, restricted to the requested members.

    Args:
        request: the command.
        before: an earlier reading, whose stack and ad hoc fleet are kept.
        allow_empty: accept an environment without members, whose nodes are all orphans.

    Raises:
        FleetError: the flags select no members, or describe another fleet than the one of that name.
        InfraError: the settings or the stack can't be read.
    """
    settings = from_file(request.environment)
    google, stack = (
        (before.google, before.stack) if before else (google_of(settings), read_stack(request.environment))
    )
    saved = before.saved if before else AdHoc(google, stack.id)
    of_file = {item.name for item in settings[TpuSettings].slices}
    fleets: Mapping[str, Item] = saved.read()
    if request.adhoc and before is None:
        fleets = _added(request.environment, fleets, request.adhoc, of_file)
    for name in sorted(fleets.keys() & of_file) if before is None else ():
        print(_twice(request.environment, name), file=sys.stderr)
    if fleets:
        settings = from_file(request.environment, slices=slices(fleets.values()))
    # The flags of an ad hoc fleet describe it; those of others select members.
    narrowed = FleetCommand(request.environment, (request.adhoc["name"],)) if request.adhoc else request
    members = selected(settings, narrowed)
    if not members and not allow_empty:
        fix = "tpu:slices, or --tpu-type, --zones and --workers-per-zone"
        raise FleetError(f"Pulumi.{request.environment}.yaml lists no slices\n    fix: {fix}")
    return Environment(settings, members, google, stack, fleets, saved)


def _twice(environment: str, name: str) -> str:
    """Return the remark on an ad hoc fleet whose name the settings file has too."""
    file, fix = f"Pulumi.{environment}.yaml", f"tpu fleet delete {environment} --slice {name}"
    why = f"{name}: {file} has a slice of this name, and an ad hoc fleet has it already"
    return (
        f"{why}; commands of the fleet know the ad hoc one alone\n    fix: {fix}, or another name in {file}"
    )


def _added(
    environment: str, fleets: Mapping[str, Item], item: Item, of_file: Collection[str]
) -> Mapping[str, Item]:
    """Return the ad hoc fleets with another one. Raises FleetError if its name is that of another fleet."""
    name = item["name"]
    if (existing := fleets.get(name)) is None:
        if name in of_file:
            raise FleetError(
                f"{name}: Pulumi.{environment}.yaml has a slice of this name\n    fix: --slice ANOTHER"
            )
        return {**fleets, name: item}
    require_wanted(environment, existing)
    if wanted(existing) != item:
        zones = ", ".join(existing.get("zones", ()))
        shape = f"{existing.get('count')} x {existing.get('acceleratorType')} in {zones}"
        fix = f"tpu fleet delete {environment} --slice {name}, or --slice ANOTHER"
        raise FleetError(f"{name} is a fleet already, of {shape}\n    fix: {fix}")
    return fleets


def require_wanted(environment: str, item: Item) -> None:
    """Raise FleetError if the deletion of an ad hoc fleet has begun."""
    if item[PHASE] is not Phase.WANTED:
        name = item["name"]
        fix = f"tpu fleet delete {environment} --slice {name}, then this command again"
        raise FleetError(f"{name}: its deletion has begun, and isn't over\n    fix: {fix}")


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
        raise FleetError("\n".join(problems))
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
            raise FleetError(
                f"--workers-per-zone {most}: {file} has {len(several)} in {zone}\n    fix: {fix}"
            )
    return tuple(member for several in by_zone.values() for member in several[:most])


def google_of(settings: Settings) -> Google:
    """Return a client of Google with the current login."""
    return Google(settings.project, settings[StorageSettings].bucket_name, controller_bucket(settings))

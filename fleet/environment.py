"""An environment read by a command: settings, selected members, stack, Google."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from fleet.adhoc import AdHoc, Item, slices
from fleet.controller import Actor, Controller, Store
from fleet.decide import Limits
from fleet.errors import FleetError
from fleet.google import Google
from fleet.model import ObservedNode, Owner
from fleet.named import NamedSlices
from fleet.request import Request
from fleet.roster import members
from fleet.store import BucketStore, ReadOnlyStore
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


@dataclass(frozen=True)
class Environment:
    """Input of every command."""

    settings: Settings
    members: tuple[Node, ...]
    google: Google
    stack: StackState
    adhoc: Mapping[str, Item] = field(default_factory=dict)  # fleets outside the settings file, by name

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every slice of this environment's stack."""
        return names.labels(self.settings.environment, LAYER)

    @property
    def owner(self) -> Owner:
        """The owner of this stack's nodes."""
        return Owner(self.labels, self.stack.id, self.stack.held)

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
        controller.follow(self.members, nodes(self.settings), self.spec)
        if isinstance(controller.actor, _ByKind):
            controller.actor.environment = self

    def watcher(self, updates: bool = True) -> Controller:
        """Return a controller that only observes; `updates`: also members with outdated metadata."""
        return self._controller(_Observer(), ReadOnlyStore(self.google, self.stack.id), updates)

    def controller(self, updates: bool = True) -> Controller:
        """Return a controller that acts and holds the lease; `updates`: also on metadata of living nodes."""
        return self._controller(_ByKind(self), BucketStore(self.google, self.stack.id), updates)

    def _controller(self, actor: Actor, store: Store, updates: bool) -> Controller:
        try:
            zones = {observed.zone for observed in self.all_nodes}
        except RequestError:
            zones = set()  # a zone isn't reached; zones of the settings are observed all the same
        return Controller(
            self.members, self.google, actor, store, self.limits, self.owner,
            everyone=nodes(self.settings), zones=zones,
            spec=self.spec if updates else None,
        )  # fmt: skip

    def body(self, node: Node) -> Mapping[str, Any]:
        """Return the request body that creates a member."""
        assert node.member is not None, "Pulumi makes named slices"
        environment = self.settings.environment
        owned = member_labels(environment, node.slice, node.member, self.stack.id)
        labels = {**node.labels, **owned, "bundle": node.bundle_label}
        body = member_request(self.settings, node, labels)
        content = json.dumps(body["metadata"], sort_keys=True)
        body["labels"]["spec"] = sha256(content.encode()).hexdigest()[:12]
        return body

    def spec(self, node: Node) -> str:
        """Return the label `spec`, a hash of a member's metadata."""
        place = node.key, node.zone, node.name
        if place not in self._specs:
            self._specs[place] = str(self.body(node)["labels"]["spec"])
        return self._specs[place]

    @cached_property
    def _specs(self) -> dict[tuple[str, str, str], str]:
        return {}


class _ByKind:
    """Create members through the API and named slices through Pulumi; delete both through the API."""

    def __init__(self, environment: Environment):
        self.environment = environment  # its settings create new nodes
        self._zones = Zones(
            environment.google, environment.owner, lambda node: self.environment.body(node), time.time,
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


class _Observer:
    """The actor of a controller that only observes."""

    def begin(self, request: NodeRequest) -> None:
        """See `controller.Actor`."""
        raise AssertionError(f"{request}: a watcher carries out nothing")

    def ended(self) -> list[Answer]:
        """See `controller.Actor`."""
        return []


def opened(request: Request, before: Environment | None = None, *, allow_empty: bool = False) -> Environment:
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
    fleets: Mapping[str, Item] = AdHoc(google, stack.id).read()
    if request.adhoc and before is None:
        fleets = _added(request.environment, fleets, request.adhoc)
    if fleets:
        settings = from_file(request.environment, slices=slices(fleets.values()))
    target = members(settings, [request.adhoc["name"]]) if request.adhoc else selected(settings, request)
    if not target and not allow_empty:
        fix = "tpu:slices, or --tpu-type, --zones and --workers-per-zone"
        raise FleetError(f"Pulumi.{request.environment}.yaml lists no slices\n    fix: {fix}")
    return Environment(settings, target, google, stack, fleets)


def _added(environment: str, fleets: Mapping[str, Item], item: Item) -> dict[str, Item]:
    """Return the ad hoc fleets with another one. Raises FleetError if its name is that of another fleet."""
    name = item["name"]
    if (existing := fleets.get(name, item)) != item:
        zones = ", ".join(existing.get("zones", ()))
        shape = f"{existing.get('count')} x {existing.get('acceleratorType')} in {zones}"
        fix = f"tpu fleet delete {environment} --slice {name}, or --slice ANOTHER"
        raise FleetError(f"{name} is a fleet already, of {shape}\n    fix: {fix}")
    return {**fleets, name: item}


def selected(settings: Settings, request: Request) -> tuple[Node, ...]:
    """Return the members of the settings that a request selects."""
    return members(settings, request.slices, request.zones, request.workers_per_zone)


def google_of(settings: Settings) -> Google:
    """Return a client of Google with the current login."""
    return Google(
        settings.project,
        settings[StorageSettings].bucket_name,
        controller_bucket(settings),
    )

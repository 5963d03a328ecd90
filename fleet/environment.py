"""An environment as a command finds it: its settings, the members that are meant, the stack, Google."""

import argparse
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
from fleet.roster import members
from fleet.store import BucketStore, ReadOnlyStore
from fleet.zones import Answer, Request, Verb, Zones
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

_WITHOUT_SLICES = ("delete", "list", "status")  # what they are about may be orphans alone


@dataclass(frozen=True)
class Environment:
    """What every command needs."""

    settings: Settings
    members: tuple[Node, ...]
    google: Google
    stack: StackState
    adhoc: Mapping[str, Item] = field(default_factory=dict)  # fleets that stand in no file, by name

    @property
    def labels(self) -> dict[str, str]:
        """What every slice of this environment's stack carries."""
        return names.labels(self.settings.environment, LAYER)

    @property
    def owner(self) -> Owner:
        """Whose nodes are ours."""
        return Owner(self.labels, self.stack.id, self.stack.held)

    @property
    def limits(self) -> Limits:
        """As the settings say."""
        fleet = self.settings[FleetSettings]
        return Limits(fleet.preemptions_per_day, fleet.failures_per_day, fleet.heartbeat_timeout_s)

    @cached_property
    def all_nodes(self) -> list[ObservedNode]:
        """Nodes of this stack in any zone, the ones that the settings don't name too. Raises RequestError."""
        owner = self.owner
        return [observed for observed in self.google.all_nodes() if owner.owns(observed)]

    def follow(self, controller: Controller) -> None:
        """Has a controller keep what is asked for here from now on, by these settings."""
        controller.follow(self.members, nodes(self.settings), self.spec)
        if isinstance(controller.actor, _Both):
            controller.actor.environment = self

    def watcher(self, updates: bool = True) -> Controller:
        """One that only looks; without `updates`, at nothing that has metadata of earlier settings."""
        return self._controller(_Nothing(), ReadOnlyStore(self.google, self.stack.id), updates)

    def controller(self, updates: bool = True) -> Controller:
        """One that may act, and holds the lease; without `updates` nodes that live keep their metadata."""
        return self._controller(_Both(self), BucketStore(self.google, self.stack.id), updates)

    def _controller(self, actor: Actor, store: Store, updates: bool) -> Controller:
        try:
            zones = {observed.zone for observed in self.all_nodes}
        except RequestError:
            zones = set()  # a zone isn't reached; those that the settings name are looked into all the same
        return Controller(
            self.members, self.google, actor, store, self.limits, self.owner,
            everyone=nodes(self.settings), zones=zones,
            spec=self.spec if updates else None,
        )  # fmt: skip

    def body(self, node: Node) -> Mapping[str, Any]:
        """What a member is created from."""
        assert node.member is not None, "Pulumi makes named slices"
        environment = self.settings.environment
        ours = member_labels(environment, node.slice, node.member, self.stack.id)
        labels = {**node.labels, **ours, "bundle": node.bundle_label}
        body = member_request(self.settings, node, labels)
        content = json.dumps(body["metadata"], sort_keys=True)
        body["labels"]["spec"] = sha256(content.encode()).hexdigest()[:12]
        return body

    def spec(self, node: Node) -> str:
        """What tells a member's metadata from that of earlier settings: its label `spec`."""
        where = node.key, node.zone, node.name
        if where not in self._specs:
            self._specs[where] = str(self.body(node)["labels"]["spec"])
        return self._specs[where]

    @cached_property
    def _specs(self) -> dict[tuple[str, str, str], str]:
        return {}


class _Both:
    """Members through the API, named slices through Pulumi; deletions are the API's."""

    def __init__(self, environment: Environment):
        self.environment = environment  # whose settings new nodes are made by
        self._zones = Zones(
            environment.google, environment.owner, lambda node: self.environment.body(node), time.time,
            environment.settings[FleetSettings].heartbeat_timeout_s,
        )  # fmt: skip
        self._named = NamedSlices(environment.settings.environment)

    def begin(self, request: Request) -> None:
        """See `controller.Actor`."""
        named = request.verb is Verb.CREATE and request.node.member is None
        (self._named if named else self._zones).begin(request)

    def ended(self) -> list[Answer]:
        """See `controller.Actor`."""
        return [*self._zones.ended(), *self._named.ended()]


class _Nothing:
    """What those who only look act by."""

    def begin(self, request: Request) -> None:
        """See `controller.Actor`."""
        raise AssertionError(f"{request} was to be carried out for somebody who only looks")

    def ended(self) -> list[Answer]:
        """See `controller.Actor`."""
        return []


def opened(options: argparse.Namespace) -> Environment:
    """The environment that a command names, with the fleet that its flags describe.

    Raises:
        FleetError, InfraError: the settings, the flags or the stack are wrong.
    """
    settings = from_file(options.environment)
    google = google_of(settings)
    stack = read_stack(options.environment)
    saved = AdHoc(google, stack.id)
    found = saved.read()
    if flags := described(options):
        if (old := found.get(flags["name"], flags)) != flags:
            fix = f"tpu fleet delete {options.environment} --slice {flags['name']}, or --slice ANOTHER"
            raise FleetError(f"{flags['name']} is a fleet already, of {_shown(old)}\n    fix: {fix}")
        found = {**found, flags["name"]: flags}
    return restricted(options, settings, google, stack, found)


def google_of(settings: Settings) -> Google:
    """Google, as the account that is logged in."""
    return Google(
        settings.project,
        settings[StorageSettings].bucket_name,
        controller_bucket(settings),
    )


def restricted(
    options: argparse.Namespace,
    settings: Settings,
    google: Google,
    stack: StackState,
    adhoc: Mapping[str, Item],
) -> Environment:
    """The members that the flags leave."""
    if adhoc:
        settings = from_file(options.environment, slices=slices(adhoc.values()))
    flags = described(options)
    target = members(settings, [flags["name"]]) if flags else _narrowed(options, settings)
    if not target and options.command not in _WITHOUT_SLICES:
        fix = "tpu:slices, or --tpu-type, --zones and --workers-per-zone"
        raise FleetError(f"Pulumi.{options.environment}.yaml lists no slices\n    fix: {fix}")
    return Environment(settings, target, google, stack, adhoc)


def from_flags(options: argparse.Namespace) -> tuple[Settings, tuple[Node, ...]]:
    """Settings and members without a stack or Google, whose troubles are what doctor looks for."""
    settings = from_file(options.environment)
    return settings, _narrowed(options, settings)


def _narrowed(options: argparse.Namespace, settings: Settings) -> tuple[Node, ...]:
    return members(settings, options.slice, options.zones, options.workers_per_zone)


def followed(options: argparse.Namespace, before: Environment) -> Environment:
    """The environment by what its file says now."""
    found = AdHoc(before.google, before.stack.id).read()
    settings = from_file(options.environment)
    return restricted(options, settings, before.google, before.stack, found)


def described(options: argparse.Namespace) -> dict[str, Any]:
    """The fleet that the flags describe, as an item of `tpu:slices`; empty where they describe none.

    Raises FleetError where they leave something out.
    """
    kind = getattr(options, "tpu_type", None)
    if not kind:
        return {}
    per_zone = options.workers_per_zone or 1
    if not options.zones or len(options.slice) > 1:
        found = "no --zones" if not options.zones else f"{len(options.slice)} names"
        raise FleetError(
            f"--tpu-type {kind}: {found}\n    fix: --zones us-east5-a,us-east5-b, and one --slice"
        )
    item: dict[str, Any] = {
        "name": options.slice[0] if options.slice else "adhoc", "acceleratorType": kind,
        "zones": options.zones, "count": per_zone * len(options.zones), "spot": not options.on_demand,
    }  # fmt: skip
    return {**item, **({"run": options.run_command} if options.run_command else {})}


def _shown(item: Mapping[str, Any]) -> str:
    return f"{item.get('count')} x {item.get('acceleratorType')} in {', '.join(item.get('zones', ()))}"

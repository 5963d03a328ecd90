"""Declaration of a layer: settings, outputs, program, prices, roles and hooks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from infra.core.lookup import Lookup
from infra.core.outputs import Outputs
from infra.core.providers import Factory
from infra.core.watched import Alert, LogMetric
from infra.errors import Problem
from infra.google.quotas import Use
from infra.google.role import On, Role
from infra.prices.row import PriceRow, Rate
from infra.settings.schema import Relation, Settings
from infra.settings.sources import INSTALLED, PROGRAM, ROOT, part
from settings_schema.parser import RecordRule

if TYPE_CHECKING:
    import pulumi

    from infra.google.client import Client

Program = Callable[[Settings, Mapping[str, "pulumi.ProviderResource"]], Outputs]


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Generated files that a layer's program reads and that are not part of the checkout.

    Attributes:
        read: returns verified contents by file name; raises InfraError where the files are missing.
        variable: environment variable with their folder, where a program runs in a build.
    """

    read: Callable[[], Mapping[str, bytes]]
    variable: str


@dataclass(frozen=True, kw_only=True)
class MachineBundle:
    """Bundle that a layer's machines install at their boot, as TPU hosts do theirs; `tpu publish` builds it.

    Attributes:
        key: setting that its id is recorded in.
        script: returns the start-up script, which the loader runs (infra/layers/tpu/startup/loader.sh).
        wheels: lock of the Python packages.
        packages: lock of the Debian packages, of which each archive becomes a file NAME.tar.gz.
    """

    key: str
    script: Callable[[], str]
    wheels: Path
    packages: Path


@dataclass(frozen=True)
class Named:
    """Account, bucket or other name: the setting that names it, its name, and the component whose it is."""

    path: str
    name: str
    owner: str


@dataclass(frozen=True)
class Place:
    """A service (`run`) that a layer needs in a region, and the setting that the region comes from."""

    path: str
    service: str
    region: str


@dataclass(frozen=True)
class Acting:
    """Accounts of a layer that those who bring it up act as.

    Attributes:
        on: name of these in roles, e.g. "GKE nodes' account".
        setting: members that may act as them, e.g. "gke:nodeAccountUsers".
        accounts: returns their ids; a role is granted on all alike.
    """

    on: On
    setting: str
    accounts: Callable[[Settings], Sequence[str]]


@dataclass(frozen=True)
class Offer:
    """Accelerator type and image of a slice, which its zone has to offer."""

    zone: str
    accelerator_type: str
    image: str


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Extension points that few layers use; the defaults add nothing.

    Attributes:
        after: layers that come up earlier where both are on, although nothing of theirs is read.
        acting: its accounts that are acted as.
        missing_grant: maps a refusal to the grant that an account of this layer lacks; "" if unknown.
        transient_errors: refusals that end within minutes, so that `tpu up` retries: regular expression of
            Google's message → explanation.
        quotas: Google limits that the layer may use at once, for `tpu doctor ENV`.
        offers: accelerator types and images that its slices need in each zone, for the same.
        lookups: by resource type with a server-assigned id, the list to find it in
            (infra/engine/recovery/ids.py).
        claims: names that one stack alone can have, and `at_google` hasn't; the owner is the full id.
        rendered: generated files that builds take along.
        bundle: what its machines install.
        lacking: problems of what it uses at Google, no layer makes and isn't there, for `tpu plan` and
            `tpu doctor ENV`; may raise RequestError.
        imported: by id, as in `at_google`, the setting that takes over what an earlier stack left.
        following: command that those who work with it type next, once it is up; "" for none.
        metrics: of its log entries, which the monitoring layer makes while this layer is on.
        alerts: likewise; each has a page docs/runbooks/NAME.md.
    """

    after: tuple[str, ...] = ()
    acting: Acting | None = None
    missing_grant: Callable[[Settings, str], str] = lambda *_: ""
    transient_errors: Mapping[str, str] = field(default_factory=dict)
    quotas: Callable[[Settings], Iterable[Use]] = lambda _: ()
    offers: Callable[[Settings], Iterable[Offer]] = lambda _: ()
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    claims: Callable[[Settings], Iterable[Named]] = lambda _: ()
    rendered: Rendered | None = None
    bundle: MachineBundle | None = None
    lacking: Callable[[Settings, Client], Iterable[Problem]] | None = None
    imported: Callable[[Settings], Mapping[str, str]] = lambda _: {}
    following: Callable[[Settings], str] = lambda _: ""
    metrics: tuple[LogMetric, ...] = ()
    alerts: tuple[Alert, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Declaration of one folder of infra/layers.

    Attributes:
        name: of the folder, of the Pulumi project, and of the section of `Pulumi.<env>.yaml`.
        settings: class of that section (`infra.settings.schema.setting` makes its fields).
        outputs: class of the stack's exports.
        program: declares the resources with providers by name, and returns the outputs. It imports Pulumi's
            SDK when called, so that commands that don't run it start quickly.
        reads: layers that must be up first: their resources, or the services that they enable, are used.
        may_read: such layers that may be off in the environment.
        always_on: on in every environment; otherwise on where the file has one of its settings.
        rules: between its settings, and with those of layers that it reads.
        record_rules: by the class of a list's items, the rule between an item's fields.
        roles: roles that a platform engineer needs to bring it up and down.
        grants: roles that it grants on the project; its operator may grant these and no others.
        services: Google services that it calls, e.g. "compute.googleapis.com".
        accounts: service accounts that it makes; no two components of an environment share one.
        buckets: buckets of Cloud Storage that it works with; likewise.
        places: services that it needs in a region; one that Google hasn't there is refused with the settings.
        providers: factories of its providers, by name.
        prices: rows billed by the hour.
        rates: prices billed by use alone.
        at_google: ids of its resources in the state → URL at which Google answers for each.
        ids: id formats of resource types that no other layer makes (infra/engine/recovery/ids.py).
        holds: kind of living things outside any stack that depend on it, "members" of fleets or "jobs"
            (infra/core/guard.py): while one lives, neither it nor the layers that it reads are destroyed.
        held_by: labels that those nodes or clusters carry, or the full name of the one `cluster`.
        hooks: extension points that few layers use.
    """

    name: str
    settings: type
    outputs: type[Outputs]
    program: Program
    providers: Mapping[str, Factory]
    reads: tuple[str, ...] = ()
    may_read: tuple[str, ...] = ()
    always_on: bool = False
    rules: tuple[Relation, ...] = ()
    record_rules: Mapping[type, RecordRule] = field(default_factory=dict)
    roles: tuple[Role, ...] = ()
    grants: Callable[[Settings], Iterable[str]] = lambda _: ()
    services: Callable[[Settings], Iterable[str]] = lambda _: ()
    accounts: Callable[[Settings], Iterable[Named]] = lambda _: ()
    buckets: Callable[[Settings], Iterable[Named]] = lambda _: ()
    places: Callable[[Settings], Iterable[Place]] = lambda _: ()
    prices: Callable[[Settings], Iterable[PriceRow]] = lambda _: ()
    rates: Callable[[Settings], Iterable[Rate]] = lambda _: ()
    at_google: Callable[[Settings], Mapping[str, str]] = lambda _: {}
    ids: Mapping[str, str] = field(default_factory=dict)
    holds: str = ""
    held_by: Callable[[Settings], Mapping[str, str]] = lambda _: {}
    hooks: Hooks = Hooks()

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of all layers that it reads."""
        return (*self.reads, *self.may_read)

    @property
    def follows(self) -> tuple[str, ...]:
        """Names of all layers that come up earlier."""
        return (*self.needs, *self.hooks.after)

    @property
    def directory(self) -> str:
        """Folder of its Pulumi.yaml, as `pulumi -C` takes it; "." is the root."""
        return directory(self.name)


def deferred(module: str) -> Program:
    """Return a module's function `program`; the module is imported at the first call."""

    def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> Outputs:
        function: Program = importlib.import_module(module).program
        return function(settings, providers)

    return program


PROJECTS = ".tpu"
"""Folder of the Pulumi.yaml files beside the environments', where the program is a wheel's."""


def directory(name: str, root: Path = ROOT) -> str:
    """Return the folder of a layer's Pulumi.yaml, as `pulumi -C` takes it; "." is the root."""
    return f"{PROJECTS}/{name}" if INSTALLED else str(project_file(name, root).parent.relative_to(root))


def project_file(name: str, program: Path = PROGRAM) -> Path:
    """Return a layer's Pulumi.yaml as the program has it: its folder's, or the root's."""
    own = part(f"infra/layers/{name}/Pulumi.yaml", program)
    return own if own.is_file() else part("Pulumi.yaml", program)


def up_command(name: str, environment: str) -> str:
    """Return the command that brings a layer up."""
    return f"tpu up {environment} {name}"


def off(name: str, environment: str) -> str:
    """Return the message that a layer is off in an environment, with the fix."""
    return (
        f"{name} is off in {environment}: Pulumi.{environment}.yaml has no setting {name}:…\n"
        "    fix: write one (docs/reference/settings.md), or end what is up: "
        f"tpu down {environment} {name}"
    )

"""Declaration of a layer: settings, outputs, program, prices, roles and hooks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.core.outputs import Outputs
from infra.google.quotas import Use
from infra.google.role import Role
from infra.settings.schema import Relation, Settings

if TYPE_CHECKING:
    import pulumi

    from infra.core.lookup import Lookup
    from infra.core.providers import Factory
    from infra.prices.row import Rate, Row
from infra.settings.schema import RecordRule

ROOT = Path(__file__).resolve().parents[2]


Program = Callable[[Settings, Mapping[str, "pulumi.ProviderResource"]], Outputs]


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """Files that a layer's program reads, and that neither a checkout nor a package has.

    Attributes:
        read: their contents by name, checked. Raises InfraError where they aren't on this machine.
        hashes: file of the checkout that pins them, as sha256sum writes it.
        variable: of the environment, with the folder that has them where a program runs from an image.
    """

    read: Callable[[], Mapping[str, bytes]]
    hashes: str
    variable: str


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What a folder declares.

    Attributes:
        name: of the folder, of the Pulumi project, and of the section of `Pulumi.<env>.yaml`.
        settings: class of that section (`infra.settings.schema.setting` makes its fields).
        outputs: class of what its stack exports.
        program: declares the resources with providers by name, and returns the outputs. It imports Pulumi's
            SDK when it is called: commands that don't run it shouldn't wait for that.
        reads: layers that must be up before it: it uses what they made, or the services that they enable.
        may_read: such layers that may be off in the environment.
        after: layers that come up before it where both are on, though it reads nothing of theirs.
        always_on: in every environment; otherwise a layer is on where the file has one of its settings.
        rules: between its settings, and with those of layers that it reads.
        record_rules: by the class of a list's items, the rule between an item's fields.
        roles: what a platform engineer asks for to bring it up and down.
        grants: roles that it grants on the project; who brings it up may grant these and no others.
        lacks: the grant of an account that it makes which a refusal lacks, in words; empty for any other.
        not_yet: refusals of an update that are over in minutes, so that `tpu up` asks again: a regular
            expression that Google's message has, and what it means, in words.
        quotas: what it may use of Google's limits at once: `tpu doctor ENV` compares.
        services: Google services that it calls, e.g. "compute.googleapis.com".
        planned: outputs that the settings foretell, by field: what a preview shows before it is up.
        providers: factories of its providers, by name.
        prices: what it costs by the hour.
        rates: what of it is billed by use alone.
        at_google: what it makes, by the id in its state, with the URL where Google answers for it.
        ids: of resource types that no other layer makes: infra/engine/recovery/ids.py.
        lookups: how resources are found whose ids Google chooses, by type: infra/engine/recovery/lookups.py.
        holds: what lives on it and is in no stack, "members" of fleets or "jobs" (infra/core/guard.py): while
            one does, no destroy of it or of what it reads.
        held_by: the layer whose label the nodes or clusters carry that these are found on.
        rendered: files that its program reads besides the checkout: the builder image takes them along.
    """

    name: str
    settings: type
    outputs: type[Outputs]
    program: Program
    providers: Mapping[str, Factory]
    reads: tuple[str, ...] = ()
    may_read: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    always_on: bool = False
    rules: tuple[Relation, ...] = ()
    record_rules: Mapping[type, RecordRule] = field(default_factory=dict)
    roles: tuple[Role, ...] = ()
    grants: Callable[[Settings], Iterable[str]] = lambda _: ()
    lacks: Callable[[Settings, str], str] = lambda *_: ""
    not_yet: Mapping[str, str] = field(default_factory=dict)
    quotas: Callable[[Settings], Iterable[Use]] = lambda _: ()
    services: Callable[[Settings], Iterable[str]] = lambda _: ()
    planned: Callable[[Settings], Mapping[str, Any]] = lambda _: {}
    prices: Callable[[Settings], Iterable[Row]] = lambda _: ()
    rates: Callable[[Settings], Iterable[Rate]] = lambda _: ()
    at_google: Callable[[Settings], Mapping[str, str]] = lambda _: {}
    ids: Mapping[str, str] = field(default_factory=dict)
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    holds: str = ""
    held_by: str = ""
    rendered: Rendered | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """All that it reads."""
        return (*self.reads, *self.may_read)

    @property
    def follows(self) -> tuple[str, ...]:
        """All that comes up before it."""
        return (*self.needs, *self.after)

    @property
    def directory(self) -> str:
        """Where its Pulumi.yaml is, as `pulumi -C` takes it; "." is the root."""
        return directory(self.name)


def deferred(module: str) -> Program:
    """The function `program` of a module, which is imported when that is called."""

    def program(settings: Settings, providers: Mapping[str, pulumi.ProviderResource]) -> Outputs:
        found: Program = importlib.import_module(module).program
        return found(settings, providers)

    return program


def directory(name: str, root: Path = ROOT) -> str:
    """Where a layer's Pulumi.yaml is, as `pulumi -C` takes it; "." is the root."""
    path = f"infra/layers/{name}"
    return path if (root / path / "Pulumi.yaml").is_file() else "."


def up_command(name: str, environment: str) -> str:
    """The command that brings a layer up."""
    where = directory(name)
    return f"pulumi {'' if where == '.' else f'-C {where} '}up -s {environment}"


def off(name: str, environment: str) -> str:
    """Why a layer can't be brought up in an environment, and what to do."""
    return (
        f"{name} is off in {environment}: Pulumi.{environment}.yaml has no setting {name}:…\n"
        "    fix: write one (docs/settings.md), or end what is up: "
        f"tpu down {environment} {name}"
    )

"""The layers: each folder of infra/ whose package has a `LAYER` is one, and declares itself there.

Nothing else lists them. Who needs all of them, or those of an environment, walks over `layers()` or `on()`.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import LayersError, Problem
from infra.gcp.quotas import Use
from infra.gcp.roles import Role
from infra.outputs import Outputs, camel_case
from infra.settings.schema import SHARED, Relation, Settings

if TYPE_CHECKING:
    import pulumi

    from infra.lookups import Lookup
    from infra.prices import Rate, Row
    from infra.providers import Factory

_ROOT = Path(__file__).resolve().parents[1]
_NAME = re.compile("[a-z][a-z0-9]*")
_SERVICE = re.compile(r"[a-z][a-z0-9-]*\.googleapis\.com")
_RESERVED = ("pulumi", *SHARED)

Program = Callable[[Settings, Mapping[str, "pulumi.ProviderResource"]], Outputs]
RecordRule = Callable[[str, Any, dict[str, Any], set[str]], tuple[Any, Sequence[Problem]]]
"""An item of a list as other rules can read it, and what is wrong between its fields; of its path, the item,
its text, and the paths that are broken, to which it adds.
"""


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
        ids: of resource types that no other layer makes: infra/google_ids.py.
        lookups: how resources are found whose ids Google chooses, by type: infra/lookups.py.
        holds: what lives on it and is in no stack, "members" of fleets or "jobs" (infra/guard.py): while one
            does, no destroy of it or of what it reads.
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


@cache
def layers() -> tuple[Layer, ...]:
    """All layers, each behind those that it reads. Raises LayersError with all that is wrong with them."""
    found = [
        (path.name, layer)
        for path in sorted((_ROOT / "infra").iterdir())
        if (path / "__init__.py").is_file()
        and isinstance(layer := getattr(importlib.import_module(f"infra.{path.name}"), "LAYER", None), Layer)
    ]
    return ordered(found, _ROOT)


def named(name: str) -> Layer | None:
    """The layer of that name."""
    return next((layer for layer in layers() if layer.name == name), None)


def on(settings: Settings) -> tuple[Layer, ...]:
    """The layers that are on in an environment, in their order."""
    return tuple(layer for layer in layers() if layer.settings in settings.sections)


def services(settings: Settings) -> tuple[str, ...]:
    """The Google services that an environment needs, sorted. Raises LayersError for names that are none."""
    desired = [(service, layer.name) for layer in on(settings) for service in layer.services(settings)]
    wrong = [
        Problem(f"infra/{layer}", f'the service "{service}"', "a service is a name at Google",
                "write it as `gcloud services list` does, e.g. compute.googleapis.com")
        for service, layer in desired
        if not _SERVICE.fullmatch(service)
    ]  # fmt: skip
    if wrong:
        raise LayersError(wrong)
    return tuple(sorted({service for service, _ in desired}))


def directory(name: str, root: Path = _ROOT) -> str:
    """Where a layer's Pulumi.yaml is, as `pulumi -C` takes it; "." is the root."""
    return f"infra/{name}" if (root / "infra" / name / "Pulumi.yaml").is_file() else "."


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


def ordered(found: Sequence[tuple[str, Layer]], root: Path) -> tuple[Layer, ...]:
    """Layers behind those that they read, by name where that leaves a choice.

    Args:
        found: folders of infra/ with the layer that each declares.
        root: where the Pulumi.yaml files are looked for.

    Raises:
        LayersError: names, settings, outputs or an order that can't be.
    """
    problems = [*_names(found, root), *_settings(found), *_planned(found), *_reads(found)]
    result: list[Layer] = []
    left = {layer.name: layer for _, layer in found}
    known = set(left)
    while ready := sorted(name for name, one in left.items() if not left.keys() & set(one.follows)):
        result.append(left.pop(ready[0]))
    circle = sorted(name for name in left if name not in left[name].follows and _reached(left, name))
    if circle:
        problems.append(Problem(
            ", ".join(f"infra/{name}" for name in circle),
            "; ".join(f"{one} after {', '.join(sorted({*left[one].follows} & {*circle}))}" for one in circle),
            "a layer comes up after those that it reads, or that its `after` names", "take one of these out",
        ))  # fmt: skip
    if problems or known != {layer.name for layer in result}:
        raise LayersError(problems)
    return tuple(result)


def _reached(left: Mapping[str, Layer], start: str) -> bool:
    """Whether a layer is read by itself through others."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for name in left[ahead.pop()].follows:
            if name in left and name not in seen:
                seen.add(name)
                ahead.append(name)
    return start in seen


def _names(found: Sequence[tuple[str, Layer]], root: Path) -> Iterable[Problem]:
    times = Counter(layer.name for _, layer in found)
    for folder, layer in found:
        name, where = layer.name, f"infra/{folder}"
        path = root / where / "Pulumi.yaml"
        path = path if path.is_file() else root / "Pulumi.yaml"
        project = re.search(r"(?m)^name: *(\S+)", path.read_text() if path.is_file() else "")
        if times[name] > 1:
            others = ", ".join(
                f"infra/{other}" for other, one in found if one.name == name and other != folder
            )
            yield Problem(where, f"layer {name}, as {others}", "each layer has its own name", "rename one")
        if not _NAME.fullmatch(name) or name != folder:
            rule = "a layer is called as its folder: small letters and digits, first a letter"
            yield Problem(where, f'layer "{name}"', rule, f"LAYER = Layer(name={folder!r}, …)")
        elif project is None or project[1] != name:
            found_there = f"name: {project[1]}" if project else "no name"
            rule = "a layer's folder, or the root, has the Pulumi.yaml of a project called as the layer"
            yield Problem(
                where, f"{found_there} in {path.relative_to(root)}", rule, f"write name: {name} there"
            )


def _settings(found: Sequence[tuple[str, Layer]]) -> Iterable[Problem]:
    claims: dict[str, list[str]] = {f"{name}:": ["the program itself"] for name in _RESERVED}
    for folder, layer in found:
        for item in fields(layer.settings):
            if "about" not in item.metadata:
                fix = 'write NAME: TYPE = setting("meaning", …)'
                yield Problem(
                    f"infra/{folder}", f"the field {item.name}", "settings are made by setting()", fix
                )
            path = f"{layer.name}:{camel_case(item.name)}"
            claims.setdefault(path, []).append(f"infra/{folder}")
            if layer.name in _RESERVED:
                claims[f"{layer.name}:"].append(f"infra/{folder}")
    for path, claimed in claims.items():
        if len(claimed) > 1:
            by = " and ".join(dict.fromkeys(claimed)) + (" twice" if len(set(claimed)) == 1 else "")
            yield Problem(path, f"claimed by {by}", "a setting belongs to one layer", "rename one")


def _planned(found: Sequence[tuple[str, Layer]]) -> Iterable[Problem]:
    owners: dict[type, list[str]] = {}
    for folder, layer in found:
        for kind in (layer.settings, layer.outputs):
            owners.setdefault(kind, []).append(f"infra/{folder}")
    for kind, folders in owners.items():
        if len(folders) > 1:
            rule = "a layer has its own settings and outputs"
            yield Problem(", ".join(folders), f"the class {kind.__name__}", rule, "declare another one")


def _reads(found: Sequence[tuple[str, Layer]]) -> Iterable[Problem]:
    known = {layer.name for _, layer in found}
    for folder, layer in found:
        for name in layer.follows:
            if name == layer.name:
                yield Problem(
                    f"infra/{folder}", f"reads {name}", "a layer doesn't read itself", "take it out"
                )
            elif name not in known:
                rule = f"a layer reads layers that are there: {', '.join(sorted(known - {layer.name}))}"
                yield Problem(f"infra/{folder}", f"reads {name}", rule, "correct it, or take it out")


def section_classes() -> dict[str, type]:
    """Every section of `Pulumi.<env>.yaml`, by name."""
    shared = list(SHARED.items())
    return dict([*shared[:1], *((layer.name, layer.settings) for layer in layers()), *shared[1:]])

"""Registry of the layers: the folders of infra/layers/ whose layer.py declares a `LAYER`.

Nothing else lists them.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from infra.core.layer import Layer, project_file
from infra.errors import LayersError, Problem
from infra.settings.schema import SHARED
from infra.settings.sources import PROGRAM
from infra.settings.spelling import camel_case

_NAME = re.compile("[a-z][a-z0-9]*")
_RESERVED = ("pulumi", *SHARED)


@cache
def layers() -> tuple[Layer, ...]:
    """Return all layers, each behind those that it reads. Raises LayersError with all wrong declarations."""
    declarations = [
        (path.name, layer)
        for path in sorted((PROGRAM / "infra" / "layers").iterdir())
        if (path / "layer.py").is_file()
        and isinstance(layer := importlib.import_module(f"infra.layers.{path.name}.layer").LAYER, Layer)
    ]
    return ordered(declarations, PROGRAM)


def named(name: str) -> Layer:
    """Return the layer of that name."""
    return next(layer for layer in layers() if layer.name == name)


def ordered(declarations: Sequence[tuple[str, Layer]], root: Path) -> tuple[Layer, ...]:
    """Layers behind those that they read, by name where that leaves a choice.

    Args:
        declarations: folders of infra/layers/ with the layer that each declares.
        root: where the Pulumi.yaml files are looked for.

    Raises:
        LayersError: names, settings, outputs or an order that can't be.
    """
    problems = [
        *_names(declarations, root),
        *_settings(declarations),
        *_planned(declarations),
        *_reads(declarations),
    ]
    declared = {layer.name: layer for _, layer in declarations}
    earlier = {name: declared.keys() & set(layer.follows) - {name} for name, layer in declared.items()}
    order = TopologicalSorter(earlier)
    try:
        order.prepare()
    except CycleError as error:
        circle = sorted(set(error.args[1]))
        problems.append(Problem(
            ", ".join(f"infra/layers/{name}" for name in circle),
            "; ".join(f"{name} after {', '.join(sorted(earlier[name] & set(circle)))}" for name in circle),
            "a layer comes up after those that it reads, or that its `after` names", "take one of these out",
        ))  # fmt: skip
    if problems:
        raise LayersError(problems)
    result, ready = list[Layer](), set[str]()
    while order.is_active():
        ready |= {*order.get_ready()}
        first = min(ready)
        ready.remove(first)
        order.done(first)
        result.append(declared[first])
    return tuple(result)


def _names(declarations: Sequence[tuple[str, Layer]], root: Path) -> Iterable[Problem]:
    times = Counter(layer.name for _, layer in declarations)
    for folder, layer in declarations:
        name, where = layer.name, f"infra/layers/{folder}"
        path = project_file(folder, root)
        project = re.search(r"(?m)^name: *(\S+)", path.read_text() if path.is_file() else "")
        if times[name] > 1:
            twins = ", ".join(
                f"infra/layers/{path}" for path, twin in declarations if twin.name == name and path != folder
            )
            yield Problem(where, f"layer {name}, as {twins}", "each layer has its own name", "rename one")
        if not _NAME.fullmatch(name) or name != folder:
            rule = "a layer is called as its folder: small letters and digits, first a letter"
            yield Problem(where, f'layer "{name}"', rule, f"LAYER = Layer(name={folder!r}, …)")
        elif project is None or project[1] != name:
            found_there = f"name: {project[1]}" if project else "no name"
            rule = "a layer's folder, or the root, has the Pulumi.yaml of a project called as the layer"
            yield Problem(
                where, f"{found_there} in {path.relative_to(root)}", rule, f"write name: {name} there"
            )


def _settings(declarations: Sequence[tuple[str, Layer]]) -> Iterable[Problem]:
    claims: dict[str, list[str]] = {f"{name}:": ["the program itself"] for name in _RESERVED}
    for folder, layer in declarations:
        for item in fields(layer.settings):
            if "about" not in item.metadata:
                fix = 'write NAME: TYPE = setting("meaning", …)'
                yield Problem(
                    f"infra/layers/{folder}", f"the field {item.name}", "settings are made by setting()", fix
                )
            path = f"{layer.name}:{camel_case(item.name)}"
            claims.setdefault(path, []).append(f"infra/layers/{folder}")
            if layer.name in _RESERVED:
                claims[f"{layer.name}:"].append(f"infra/layers/{folder}")
    for path, claimed in claims.items():
        if len(claimed) > 1:
            by = " and ".join(dict.fromkeys(claimed)) + (" twice" if len(set(claimed)) == 1 else "")
            yield Problem(path, f"claimed by {by}", "a setting belongs to one layer", "rename one")


def _planned(declarations: Sequence[tuple[str, Layer]]) -> Iterable[Problem]:
    owners: dict[type, list[str]] = {}
    for folder, layer in declarations:
        if layer.outputs.layer != layer.name:
            declaration = f'class {layer.outputs.__name__}(Outputs, layer="{layer.outputs.layer}")'
            rule = "outputs name the layer that exports them"
            yield Problem(f"infra/layers/{folder}", declaration, rule, f'write layer="{layer.name}"')
        for kind in (layer.settings, layer.outputs):
            owners.setdefault(kind, []).append(f"infra/layers/{folder}")
    for kind, folders in owners.items():
        if len(folders) > 1:
            rule = "a layer has its own settings and outputs"
            yield Problem(", ".join(folders), f"the class {kind.__name__}", rule, "declare another one")


def _reads(declarations: Sequence[tuple[str, Layer]]) -> Iterable[Problem]:
    known = {layer.name for _, layer in declarations}
    for folder, layer in declarations:
        for name in layer.follows:
            if name == layer.name:
                yield Problem(
                    f"infra/layers/{folder}", f"reads {name}", "a layer doesn't read itself", "take it out"
                )
            elif name not in known:
                rule = f"a layer reads layers that are there: {', '.join(sorted(known - {layer.name}))}"
                yield Problem(f"infra/layers/{folder}", f"reads {name}", rule, "correct it, or take it out")


def section_classes() -> dict[str, type]:
    """Return the class of each section of `Pulumi.<env>.yaml`, by name."""
    shared = list(SHARED.items())
    return dict([*shared[:1], *((layer.name, layer.settings) for layer in layers()), *shared[1:]])

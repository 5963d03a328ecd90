"""Settings of an environment: parsed by the declarations of all layers, from Pulumi or from the file."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from google_facts import regions
from infra.core.environment import layers_on, required_services
from infra.core.layer import Named
from infra.core.names import per_environment
from infra.engine import registry
from infra.errors import InfraError, InputError, Problem, SettingsError
from infra.settings import labels, rules, yaml_file
from infra.settings.schema import ADDED_SLICES, UNPROTECTED, Relation, Settings, keys_of
from infra.settings.sources import ROOT, _as_text, path_of
from settings_schema.parser import Parser, nearest, shown


def from_pulumi(environment: str, relations: Sequence[Relation] = ()) -> Settings:
    """Return the settings of the stack that Pulumi is running; `relations`: further rules."""
    from pulumi.runtime.config import CONFIG  # a third of a second, which commands without Pulumi don't wait

    return parse(environment, dict(CONFIG.get()), f"Pulumi.{environment}.yaml", relations=relations)


def from_file(
    environment: str,
    root: Path = ROOT,
    slices: Sequence[Mapping[str, Any]] = (),
    relations: Sequence[Relation] = (),
) -> Settings:
    """Read `Pulumi.<environment>.yaml` under `root` without Pulumi.

    Args:
        environment: its name.
        root: the project's folder.
        slices: further items of `tpu:slices`, which stand in no file; each replaces the file's of its name.
        relations: rules beside the layers' own.
    """
    name = f"Pulumi.{environment}.yaml"
    try:
        content = yaml_file.load(path_of(environment, root).read_text(encoding="utf-8"))
        config = content.get("config") if isinstance(content, dict) else None
        values, problems = _as_text(config) if isinstance(config, dict) else (None, [])
        problems += [_beside_config(*pair) for pair in yaml_file.unknown_keys(content)] if values else []
    except OSError as error:
        raise InfraError(f"{name} can't be read: {error.strerror}") from None
    # Beside what the scanner refuses: bytes that aren't UTF-8, a number that is none, endless nesting.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, RecursionError) as error:
        output = " ".join(str(error).replace(' in "<unicode string>",', " at").split())
        raise InputError(f"{name} is not YAML for settings: {output}") from None
    if values is None:
        raise InputError(f"{name} has no `config:` with settings under it: see docs/reference/settings.md")
    if slices:
        names = {item["name"] for item in slices}
        listed = [
            item for item in json.loads(values.get("tpu:slices", "[]")) if item.get("name") not in names
        ]
        values["tpu:slices"] = json.dumps([*listed, *slices])
    return parse(environment, values, name, problems, (ADDED_SLICES,) if slices else (), relations)


def _beside_config(key: str, near: str) -> Problem:
    fix = f"did you mean {near}?" if near else "remove it, or move it under config:"
    return Problem(key, "a key beside config:", "settings stand under config:; no other key is read", fix)


def parse(
    environment: str,
    values: Mapping[str, str],
    source: str,
    problems: Sequence[Problem] = (),
    marks: Sequence[str] = (),
    relations: Sequence[Relation] = (),
) -> Settings:
    """Parse settings from `values` ("storage:bucketName" → text); `problems` of reading are reported with
    others, `marks` are given to rules beside the paths of `values`, `relations` are rules beside the layers'.

    A layer that isn't always on is on where the file has a setting of it, good or not. Raises SettingsError
    with every problem.
    """
    classes, every = registry.section_classes(), registry.layers()
    rules_of = {kind: rule for layer in every for kind, rule in layer.record_rules.items()}
    parser = Parser(keys_of, texts=True, record_rules=rules_of, problems=problems)
    raw: dict[str, dict[str, str]] = {name: {} for name in classes}
    for path, value in sorted(values.items()):
        namespace, colon, key = path.partition(":")
        if namespace in raw and not key:
            rule = "a section is its keys, each with a value"
            fix = f"write e.g. {namespace}:{next(iter(keys_of(classes[namespace])))}: …, or remove it"
            parser.report(f"{namespace}{colon}", value, rule, fix)
        elif namespace in raw:
            raw[namespace][key] = value
        elif namespace != "pulumi":  # Pulumi's own, such as pulumi:disable-default-providers
            near = nearest(namespace, classes)
            fix = f"did you mean {near}:{key}?" if near else "remove it"
            if near:  # that layer is on, and its other settings are judged
                parser.broken.add(f"{near}:{key}")
            parser.report(path, value, f"a setting belongs to one of {', '.join(classes)}", fix)
    written = {path.partition(":")[0] for path in (*values, *parser.broken)}
    off = {layer.name for layer in every if not layer.always_on and layer.name not in written}
    sections: dict[type, Any] = {
        kind: _named(parser.section(f"{name}:", kind, raw[name]), raw[name], environment)
        for name, kind in classes.items()
        if name not in off
    }
    if not rules.LABEL_VALUE.ok(environment):
        fix = "rename its file, Pulumi.NAME.yaml"
        rule = "an environment's name is a label: 1 to 63 lowercase letters, digits, - and _"
        parser.problems.append(Problem("environment", shown(environment), rule, fix))
    settings = Settings(environment, sections, every)
    parser.problems.extend(labels.problems(settings, classes, parser.broken))
    for layer in (layer for layer in every if layer.name not in off):
        for name in sorted(off & set(layer.reads)):
            state, fix = (
                f"on, and {name} is off",
                f"add the settings of {name}, or remove those of {layer.name}",
            )
            parser.problems.append(Problem(f"{layer.name}:", state, f"{layer.name} reads {name}", fix))
        if not off & set(layer.reads):
            parser.problems.extend(_relations(layer.rules, settings, parser.broken, {*values, *marks}))
    parser.problems.extend(_relations(relations, settings, parser.broken, {*values, *marks}))
    parser.problems.extend(_shared(settings, parser.broken, set(values)))
    parser.problems.extend(_absent(settings, parser.broken))
    if parser.problems:
        raise SettingsError(source, sorted(parser.problems))
    required_services(settings)  # what is wrong with one is seen before anything is asked of Google
    return settings


def _named(section: Any, written: Collection[str], environment: str) -> Any:
    """Replace the default names that two environments of a project can't both have."""
    if environment == UNPROTECTED:
        return section
    own = {
        item.name: per_environment(str(item.default), environment, item.metadata["rule"])
        for key, item in keys_of(type(section)).items()
        if item.metadata.get("per_environment") and key not in written
    }
    return replace(section, **own)


def _relations(
    rules_: Sequence[Relation], settings: Settings, broken: set[str], given: set[str]
) -> Iterator[Problem]:
    """Yield problems by rules; one whose inputs are broken is skipped, since it would repeat that."""
    anywhere = {re.sub(r"\[\d+\]", "[]", path) for path in broken}
    for reads, rule in rules_:
        if not any(_within(path, read) or _within(read, path) for path in anywhere for read in reads):
            yield from rule(settings, given)


def _shared(settings: Settings, broken: set[str], given: set[str]) -> Iterator[Problem]:
    """Yield accounts and buckets that two components name: each would have the other's roles and objects."""
    for noun in ("account", "bucket"):
        owners: dict[str, Named] = {}
        for layer in layers_on(settings):
            for item in getattr(layer, f"{noun}s")(settings):
                owner = owners.setdefault(item.name, item)
                if owner is item or broken & {item.path, owner.path}:
                    continue
                wrong, right = (item, owner) if item.path in given else (owner, item)
                rule = f"that {noun} is {right.owner}, of {right.path}; each has its own"
                yield Problem(wrong.path, f'"{wrong.name}"', rule, "give it another name")


def _absent(settings: Settings, broken: set[str]) -> Iterator[Problem]:
    """Yield regions in which Google hasn't a service that a layer needs there."""
    for layer in layers_on(settings):
        for place in layer.places(settings):
            if place.path not in broken and regions.lacks(place.service, place.region):
                rule = (
                    f"{layer.name} needs {place.service}, which isn't there ({regions.source(place.service)})"
                )
                fix = f"write e.g. {regions.nearest(place.service, place.region)}, the nearest that has it"
                yield Problem(place.path, f'"{place.region}"', rule, fix)


def _within(path: str, parent: str) -> bool:
    """Return True if `path` is `parent`, or a part of it; a section's name ends with a colon."""
    inside = (f"{parent}.", f"{parent}[") if not parent.endswith(":") else parent
    return path == parent or path.startswith(inside)

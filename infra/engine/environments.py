"""Names at Google that two environments of one folder would both create."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from infra.core.environment import layers_on
from infra.core.layer import Layer, Named
from infra.engine.settings import from_file
from infra.errors import InfraError, Problem
from infra.settings.schema import Settings
from infra.settings.sources import ROOT, environments
from infra.settings.spelling import camel_case
from settings_schema.parser import shown

_OVERRIDES = {"data:snapshot": "data:diskPrefix"}
"""Settings from which a name is derived, with the setting that replaces it."""


def shared_names(settings: Settings, root: Path = ROOT) -> tuple[list[Problem], list[str]]:
    """Return the settings that name a resource which another environment's file names, too.

    Only one stack can create it. Environments whose files have problems aren't compared: their names are
    returned beside.
    """
    own = dict(_names(settings))
    problems: dict[tuple[str, str], Problem] = {}
    unread = []
    for environment in environments(root):
        if environment == settings.environment:
            continue
        try:
            other = dict(_names(from_file(environment, root)))
        except InfraError:
            unread.append(environment)
            continue
        for name in sorted(own.keys() & other.keys()):
            path, value = own[name]
            rule = (
                f"Pulumi.{environment}.yaml creates the same resource ({other[name][0]}); only one stack can"
            )
            own_name, other_name = (text.replace("_", "-") for text in (settings.environment, environment))
            if value.endswith(f"-{own_name}"):
                fix = f"write e.g. {value.removesuffix(own_name)}{other_name} into Pulumi.{environment}.yaml"
            else:
                suggested = f"{value}-{own_name}" if value else own_name
                fix = (
                    f"write e.g. {suggested}; or, if {settings.environment} is up already, "
                    f"change Pulumi.{environment}.yaml"
                )
            problem = Problem(path, shown(value) if value else "(not set)", rule, fix)
            problems.setdefault((path, environment), problem)
    return sorted(problems.values()), unread


def _names(settings: Settings) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the resources that are created: their unique names, each with its setting and the value."""
    for layer in layers_on(settings):
        texts = dict(_texts(f"{layer.name}:", settings[layer.settings]))

        def written(item: Named, texts: dict[str, str] = texts) -> tuple[str, str]:
            return item.path, texts.get(item.path, item.name)

        for account in layer.accounts(settings):
            yield f"{settings.project}/accounts/{account.name}", written(account)
        for bucket in layer.buckets(settings):
            if ":existing" not in bucket.path:
                yield f"buckets/{bucket.name}", written(bucket)
        for id_ in layer.at_google(settings):
            if "/serviceAccounts/" not in id_:
                yield f"{settings.project}/{layer.name}/{id_}", _setting_of(layer, settings, id_)
        for claim in layer.hooks.claims(settings):
            yield claim.owner, written(claim)


def _setting_of(layer: Layer, settings: Settings, id_: str) -> tuple[str, str]:
    """Return the setting whose value begins the last part of an id, and that value; else the layer's name."""
    last = id_.rpartition("/")[2]
    for path, value in _texts(f"{layer.name}:", settings[layer.settings]):
        if last == value or last.startswith(f"{value}-"):
            return (_OVERRIDES[path], "") if path in _OVERRIDES else (path, value)
    return f"{layer.name}:", last


def _texts(prefix: str, record: Any) -> Iterator[tuple[str, str]]:
    """Yield the text settings of a record, and of the items of its lists, by path."""
    for item in fields(record):
        path, value = f"{prefix}{camel_case(item.name)}", getattr(record, item.name)
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, tuple):
            for index, entry in enumerate(value):
                if is_dataclass(entry):
                    yield from _texts(f"{path}[{index}].", entry)

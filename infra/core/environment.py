"""Layers of an environment, and what they need together: services, roles, buckets."""

import re
from collections.abc import Iterable, Iterator

from infra.core.layer import Layer, off
from infra.errors import InputError, LayersError, Problem
from infra.google.role import Role, merge_roles
from infra.settings.schema import Settings

_SERVICE = re.compile(r"[a-z][a-z0-9-]*\.googleapis\.com")


def declared_layers(settings: Settings) -> tuple[Layer, ...]:
    """Return all layers of the program, on or off, each behind those that it reads."""
    return settings.layers


def layers_on(settings: Settings) -> tuple[Layer, ...]:
    """Return the layers that are on, each behind those that it reads."""
    return tuple(layer for layer in declared_layers(settings) if layer.settings in settings.sections)


def require_on(settings: Settings, names: Iterable[str]) -> None:
    """Raise InputError for the first of some layers that is off."""
    on = {layer.name for layer in layers_on(settings)}
    if disabled := [name for name in names if name not in on]:
        raise InputError(off(disabled[0], settings.environment))


def required_services(settings: Settings) -> tuple[str, ...]:
    """Return the Google services that all layers call, sorted. Raises LayersError for malformed names."""
    required = [
        (service, layer.name) for layer in layers_on(settings) for service in layer.services(settings)
    ]
    problems = [
        Problem(f"infra/layers/{layer}", f'the service "{service}"', "a service is a name at Google",
                "write it as `gcloud services list` does, e.g. compute.googleapis.com")
        for service, layer in required
        if not _SERVICE.fullmatch(service)
    ]  # fmt: skip
    if problems:
        raise LayersError(problems)
    return tuple(sorted({service for service, _ in required}))


def all_buckets(settings: Settings) -> list[str]:
    """Return all buckets that the environment works with."""
    return [bucket.name for layer in layers_on(settings) for bucket in layer.buckets(settings)]


def owners(settings: Settings) -> dict[str, str]:
    """Return the component of each account that the environment makes, by the account's id."""
    return {item.name: item.owner for layer in layers_on(settings) for item in layer.accounts(settings)}


def required_roles(layers: Iterable[Layer], settings: Settings | None = None) -> Iterator[Role]:
    """Yield the roles needed to bring layers up, each once; without settings also the conditional ones."""
    merged: dict[tuple[str, ...], Role] = {}
    sections = {layer.name: layer.settings for layer in settings.layers} if settings else {}
    for layer in layers:
        for role in layer.roles:
            section = sections.get(role.setting.rpartition(":")[0], layer.settings)
            if settings is None or role.needed(settings[section]):
                key = (role.name, role.on, role.setting)
                merged[key] = merge_roles(merged[key], role) if key in merged else role
    yield from merged.values()

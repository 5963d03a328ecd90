"""Rules between the builds layer's settings."""

from collections.abc import Iterator
from difflib import get_close_matches

from infra.core.environment import declared_layers, layers_on
from infra.errors import Problem
from infra.layers.builds.access import applied
from infra.layers.builds.settings import BuildsSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Relation, Settings


def _state(settings: Settings, given: set[str]) -> Iterator[Problem]:
    storage = settings[StorageSettings]
    for key, value, example in (
        ("storage:stateBucketName", storage.state_bucket_name, f"{settings.project}-pulumi"),
        ("storage:stateKeyRing", storage.state_key_ring, "pulumi"),
    ):
        if BuildsSettings in settings.sections and not value:
            rule = "builds hold Pulumi's state in a bucket, and its secrets by a key"
            yield Problem(key, "nothing, beside builds:…", rule, f"write {key}: {example}")


def _layers(settings: Settings, given: set[str]) -> Iterator[Problem]:
    builds = settings.get(BuildsSettings)
    if builds is None:
        return
    can = [layer.name for layer in applied(settings, every=True)]
    known = {layer.name for layer in declared_layers(settings)}
    for number, name in enumerate(builds.layers):
        if name in can:
            continue
        if name in known - {layer.name for layer in layers_on(settings)}:
            fix = f"remove it, or switch it on: a setting {name}:…"
        else:
            near = get_close_matches(name, can, 1)
            fix = f"perhaps {near[0]}" if near else "remove it"
        rule = f"layers that are on, without storage and builds: {', '.join(can)}"
        yield Problem(f"builds:layers[{number}]", f'"{name}"', rule, fix)


RULES: tuple[Relation, ...] = (
    (("storage:stateBucketName", "storage:stateKeyRing"), _state),
    (("builds:layers",), _layers),
)

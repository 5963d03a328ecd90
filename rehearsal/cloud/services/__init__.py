"""The services that are entered on the collections engine: every module of this package, by its ENTRY."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import partial

from rehearsal.cloud.collections import Engine, Entry
from rehearsal.cloud.iam import Iam
from rehearsal.cloud.operations import Operations
from rehearsal.cloud.service import Service, World
from rehearsal.cloud.services import pubsub
from rehearsal.cloud.services.compute.places import found


def entries() -> list[Entry]:
    """What the modules declare, by their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}").ENTRY for name in names]


def services(
    world: World, operations: Operations, iam: Iam, zones: Iterable[str] = (), more: Iterable[Entry] = ()
) -> list[Service]:
    """All of them and more over one world, which gets these zones. EntryError for a wrong one."""
    found(world, zones)
    engine = Engine(world, operations, iam, [*entries(), *more])
    world.publish = partial(pubsub.publish, engine.resources)
    return list(engine.services)

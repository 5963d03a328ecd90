"""The services that are entered on the collections engine: every module of this package, by its ENTRY."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from functools import cache

from rehearsal.cloud.collections import Engine, Entry
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.runtime import Runtime
from rehearsal.cloud.core.service import Service
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.services.cloudbilling import add_account
from rehearsal.cloud.services.compute.locations import add_places
from rehearsal.cloud.services.tpu.entry import add_offer


@cache
def entries() -> tuple[Entry, ...]:
    """Return the `ENTRY` of each module in this package and in its folders, by module name."""
    names = sorted(module.name for module in pkgutil.walk_packages(__path__, f"{__name__}."))
    modules = [importlib.import_module(name) for name in names if name.count(".") <= __name__.count(".") + 2]
    return tuple(module.ENTRY for module in modules if hasattr(module, "ENTRY"))


def services(
    world: World,
    operations: Operations,
    iam: Iam,
    runtime: Runtime,
    zones: Sequence[str] = (),
    more: Iterable[Entry] = (),
) -> list[Service]:
    """Create all of them and more over one world, which gets these zones. EntryError for a wrong one."""
    add_places(world, zones)
    add_offer(world, zones)
    add_account(world)
    return list(Engine(world, operations, iam, runtime, [*entries(), *more]).services)

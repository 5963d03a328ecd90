"""The services that are entered on the collections engine: every module of this package, by its ENTRY."""

from __future__ import annotations

import importlib
import pkgutil

from rehearsal.cloud.collections import Engine, Entry
from rehearsal.cloud.iam import Iam
from rehearsal.cloud.operations import Operations
from rehearsal.cloud.service import Service, World


def entries() -> list[Entry]:
    """What the modules declare, by their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}").ENTRY for name in names]


def services(world: World, operations: Operations, iam: Iam) -> list[Service]:
    """All of them over one world. EntryError if an entry doesn't agree with its document or another entry."""
    return list(Engine(world, operations, iam, entries()).services)

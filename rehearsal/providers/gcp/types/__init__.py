"""The resource types that the stand-in knows: every `Resource` in a module of this package."""

from __future__ import annotations

import importlib
import pkgutil

from rehearsal.providers.gcp.lifecycle import Resource

_MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]

TYPES: dict[str, Resource] = {
    var.table.token: var for module in _MODULES for var in vars(module).values() if isinstance(var, Resource)
}

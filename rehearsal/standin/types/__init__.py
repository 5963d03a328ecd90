"""The resource types that the stand-in knows: every `Resource` in a module of this package."""

from __future__ import annotations

import importlib
import pkgutil

from rehearsal.standin.lifecycle import Resource

_MODULES = [importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]

TYPES: dict[str, Resource] = {
    found.table.token: found
    for module in _MODULES
    for found in vars(module).values()
    if isinstance(found, Resource)
}

# Types that are recorded, and whose behaviour is too far from plain: the stand-in refuses them.
NOT_CARRIED_OUT: dict[str, str] = {
    "gcp:container/cluster:Cluster": "its body isn't the properties', each change is a request",
    "gcp:container/nodePool:NodePool": "its node count is read from the zones' instance groups",
}

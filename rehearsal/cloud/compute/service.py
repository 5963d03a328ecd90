"""The compute API as one service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rehearsal.cloud.compute.disks import Disks
from rehearsal.cloud.compute.networks import Networks
from rehearsal.cloud.compute.places import Places, found
from rehearsal.cloud.compute.registry import Registry
from rehearsal.cloud.compute.routers import Routers
from rehearsal.cloud.iam import Iam
from rehearsal.cloud.operations import Operations
from rehearsal.cloud.service import Method, World


class ComputeService:
    """Networks, subnetworks, routers, firewalls, disks and snapshots in the given zones."""

    api = "compute"
    versions = ("v1", "beta")

    def __init__(self, world: World, operations: Operations, iam: Iam, zones: Iterable[str]) -> None:
        found(world, zones)
        registry = Registry(world, operations, iam)
        self._collections = (
            Places(registry, operations),
            Networks(registry),
            Routers(registry),
            Disks(registry),
        )

    def methods(self) -> Mapping[str, Method]:
        """By method id; v1 and beta share them."""
        methods: dict[str, Method] = {}
        for collection in self._collections:
            methods.update(collection.methods())
        return methods

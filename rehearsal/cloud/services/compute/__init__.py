"""Compute Engine, as far as slices, their networks and disks, and machines without TPUs need it."""

from rehearsal.cloud.collections import Entry
from rehearsal.cloud.services.compute import disks, instances, locations, networks

ENTRY = Entry(
    "compute",
    ("v1", "beta"),
    (*locations.COLLECTIONS, *networks.COLLECTIONS, *disks.COLLECTIONS, *instances.COLLECTIONS),
)

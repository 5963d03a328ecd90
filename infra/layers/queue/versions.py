"""Versions of the controllers: those of tools/queue/go.mod, tried together by tests/rehearsal/kubernetes."""

from types import MappingProxyType

from google_facts import registries

KUEUE, JOBSET = "v0.19.2", "v0.12.0"
IMAGES = MappingProxyType(
    {"kueue": registries.released("kueue", KUEUE), "jobset": registries.released("jobset", JOBSET)}
)
"""Released images, with their digests."""

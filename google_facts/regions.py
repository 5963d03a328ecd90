"""Regions that lack a Google service."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from google_facts import table

ABSENT: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {service: block["absent"] for service, block in table("regions").items()}
)
"""By service (`cloudscheduler`), the regions without it, each with the nearest that has it."""


def lacks(service: str, place: str) -> bool:
    """Return True if a service isn't in a region, or in the region of a zone."""
    absent = ABSENT.get(service, {})
    return place in absent or place.rpartition("-")[0] in absent


def nearest(service: str, region: str) -> str:
    """Return the region itself, or where it lacks the service, the nearest one that has it."""
    return ABSENT.get(service, {}).get(region, region)


def source(service: str) -> str:
    """Return where and when the absence of a service was read."""
    block = table("regions")[service]
    return f"{block['source'].partition(';')[0]}, read {block['read']}"

"""Spellings of places and links in Compute Engine's requests, as the official provider writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.standin.table import Field, basename, same_basename, same_link, v1_link


def region_path(value: str, planned: Mapping[str, Any]) -> str:
    """`projects/P/global/regions/R`: odd, but recorded so."""
    return f"projects/{planned['project']}/global/regions/{basename(value)}"


def zone_path(value: str, planned: Mapping[str, Any]) -> str:
    """`projects/P/global/zones/Z`: odd, but recorded so."""
    return f"projects/{planned['project']}/global/zones/{basename(value)}"


def network_path(value: str, planned: Mapping[str, Any]) -> str:
    """`projects/P/global/networks/N` from a link, a path or a bare name."""
    if "/" not in value:
        return f"projects/{planned['project']}/global/networks/{value}"
    return "projects/" + value.rpartition("projects/")[2]


def optional_v1_link(link: str | None) -> str | None:
    """`v1_link` of what may be absent."""
    return v1_link(link) if link else link


NETWORK = Field(
    "network", required=True, replaces=True, same=same_link, encode=network_path, decode=optional_v1_link
)
REGION = Field(
    "region", computed=True, replaces=True, same=same_basename, encode=region_path, decode=basename
)
ZONE = Field("zone", computed=True, replaces=True, same=same_basename, encode=zone_path, decode=basename)

"""The quota of builds in a region: builds.toml."""

from collections.abc import Mapping
from types import MappingProxyType

from google_facts import table

_POOL = table("builds")["default_pool"]
METRIC: str = _POOL["metric"]
TITLE: str = _POOL["title"]
"""As the console calls it."""
ALSO: Mapping[str, str] = MappingProxyType(_POOL["also"])
"""Dimensions beside the region: where a build was submitted."""
UNRESTRICTED: tuple[str, ...] = tuple(_POOL["unrestricted"])
"""Regions in which every project may run builds."""
REFUSED: str = _POOL["refused"]
"""Refusal of a build where the quota is 0."""

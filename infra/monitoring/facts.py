"""Facts about Cloud Monitoring as typed values: `facts.toml`."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

_FACTS: dict[str, Any] = tomllib.loads(
    resources.files("infra.monitoring").joinpath("facts.toml").read_text(encoding="utf-8")
)
RESOURCE_LABELS: Mapping[str, tuple[str, ...]] = {
    name: tuple(labels) for name, labels in _FACTS["resources"].items() if isinstance(labels, list)
}
"""The labels of a monitored resource, by its type."""

"""Facts about Cloud Monitoring as typed values: `facts.toml`."""

from collections.abc import Mapping

from infra.core import facts

_FACTS = facts.of("infra.layers.monitoring")
RESOURCE_LABELS: Mapping[str, tuple[str, ...]] = {
    name: tuple(labels) for name, labels in _FACTS["resources"].items() if isinstance(labels, list)
}
"""The labels of a monitored resource, by its type."""

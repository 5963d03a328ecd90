"""Names of TPU runtime versions."""

from __future__ import annotations

from difflib import SequenceMatcher

from infra.catalog import CATALOG
from infra.settings.rules import RESOURCE_NAME, Rule


def is_runtime(value: str) -> bool:
    """Return True if hosts of v6e may boot the image `value`: neither one of older chips nor a near miss."""
    default = CATALOG.default_runtime
    if value == default or value.startswith(f"{default}-"):
        return True
    old = value in CATALOG.refused_runtimes or value.startswith("v2-alpha-")
    return RESOURCE_NAME.ok(value) and not old and SequenceMatcher(None, value, default).ratio() < 0.85


RUNTIME = Rule(
    is_runtime,
    f"an image for v6e: {CATALOG.default_runtime}, or one of your own; none of older chips",
    f"write {CATALOG.default_runtime}, or remove the line",
)

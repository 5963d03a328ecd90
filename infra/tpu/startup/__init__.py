"""The script that every TPU host runs at every boot.

It stands in `parts/`, one file a stage, and is rendered by concatenation: the same bytes
for every slice, environment and cloud, real or rehearsed.
"""

from __future__ import annotations

from importlib import resources

from infra.errors import InfraError

__all__ = ["MAX_BYTES", "PARTS", "STAGES", "ScriptTooLargeError", "render"]

MAX_BYTES = 256 * 1024
"""Compute Engine's limit for one metadata value
(cloud.google.com/compute/docs/metadata/setting-custom-metadata#limitations)."""

STAGES = (
    "identity",
    "network",
    "locks",
    "bundle",
    "mount-data",
    "mount-checkpoints",
    "python",
    "logs",
    "environment",
    "code",
    "barrier",
    "launch",
)
"""The stages in the order in which `main` runs them."""

PARTS = ("prelude", "status", "runner", *STAGES, "main")
"""The files of `parts/`, in the order in which they are joined."""


class ScriptTooLargeError(InfraError):
    """The rendered script doesn't fit into a metadata value."""


def render() -> str:
    """Return the whole script; raise `ScriptTooLargeError` where it can't be metadata."""
    folder = resources.files(__name__) / "parts"
    script = "\n".join((folder / f"{part}.sh").read_text("utf-8") for part in PARTS)
    size = len(script.encode())
    if size >= MAX_BYTES:
        raise ScriptTooLargeError(
            f"the boot script has {size} bytes, a metadata value at most {MAX_BYTES - 1}: shorten it"
        )
    return script

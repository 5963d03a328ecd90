"""Start-up script of every TPU host: a file of the bundle, and the loader in the metadata that runs it.

The script is in `parts/`, a file for each stage, and is rendered by concatenation: the same bytes for every
slice, environment and cloud, real or rehearsed. `tpu publish` puts it into the bundle as `startup.sh`; a
node's metadata holds `loader.sh` and the bundle's id, by which the loader fetches and checks the script.
"""

from __future__ import annotations

from hashlib import sha256
from importlib import resources

__all__ = ["IN_BUNDLE", "PARTS", "STAGES", "loader", "render", "script_sha256"]

IN_BUNDLE = "startup.sh"
"""The script's path in a bundle, which the loader looks for in the manifest."""

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
    "image",
    "barrier",
    "launch",
)
"""The stages in the order in which `main` runs them. The loader, before them, reports as `script`."""

PARTS = ("prelude", "status", "runner", *STAGES, "main")
"""The files of `parts/`, in the order in which they are joined."""


def render() -> str:
    """Return the whole script."""
    parts = resources.files(__name__) / "parts"
    return "\n".join((parts / f"{part}.sh").read_text("utf-8") for part in PARTS)


def script_sha256() -> str:
    """Return the rendered script's sha256, in hex: its name among the bucket's blobs."""
    return sha256(render().encode()).hexdigest()


def loader() -> str:
    """Return the `startup-script` of every node's metadata."""
    return (resources.files(__name__) / "loader.sh").read_text("utf-8")

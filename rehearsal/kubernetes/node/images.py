"""Local stand-ins for container images: nothing is pulled in a world."""

from __future__ import annotations

from pathlib import Path

from rehearsal.kubernetes.node.sandbox import Image
from rehearsal.kubernetes.plane.programs import program


def controllers() -> dict[str, Image]:
    """Kueue and JobSet by their built programs, under the names of their images, wherever those come from."""
    return {f"*/{name}/{name}*": Image({"/manager": program(name)}) for name in ("kueue", "jobset")}


def table(debian: Path) -> dict[str, Image]:
    """By patterns of their names: the controllers, and a bare Debian (`debian`: its root) for all else."""
    return {**controllers(), "*": Image(root=debian)}

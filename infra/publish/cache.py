"""Files that are made once for the same inputs, in the project's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

__all__ = ["cache_dir", "key_of", "once"]


def cache_dir(*parts: str) -> Path:
    """Return a folder of the project's cache, made if it isn't there."""
    base = os.environ.get("TPU_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else (Path(xdg) if xdg else Path.home() / ".cache") / "tpu-pulumi"
    folder = root.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def key_of(*inputs: str) -> str:
    """Return a name for what is made of these inputs."""
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]


def once(made: Path, make: Callable[[Path], object]) -> Path:
    """Let `make` write a file or folder unless it is there; whole, whatever other processes do meanwhile."""
    if not made.exists():
        part = made.with_name(f"{made.name}.{os.getpid()}.part")
        try:
            make(part)
            part.replace(made)
        except OSError:
            if not made.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
            part.unlink(missing_ok=True)
    return made

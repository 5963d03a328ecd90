"""Data of a layer: its `facts.toml`, each block with its source and the day it was read."""

import tomllib
from importlib import resources
from typing import Any


def of(package: str) -> dict[str, Any]:
    """Return the facts of a package, e.g. "infra.layers.gke"."""
    return tomllib.loads(resources.files(package).joinpath("facts.toml").read_text(encoding="utf-8"))

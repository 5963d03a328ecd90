"""Source of the pipeline's function: a zip of the packages that it runs and of the environment's settings."""

from __future__ import annotations

from pathlib import Path

from infra.core.packed import PACKAGES, packed
from infra.settings.schema import Settings
from infra.settings.sources import ROOT, part

_ENTRY = "infra/layers/pipeline/function"


def source(settings: Settings, root: Path = ROOT) -> Path:
    """Return the function's source as a zip that is the same for the same files."""
    beside = {name: part(f"{_ENTRY}/{name}") for name in ("main.py", "requirements.txt")}
    return packed(settings, (*PACKAGES, "pipeline"), root, beside)

"""Source of the pipeline's function: a zip of the packages that it runs and of the environment's settings."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from infra.settings.schema import Settings
from infra.settings.sources import ROOT, path_of

_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_PACKAGES = ("fleet", "google_facts", "infra", "pipeline", "settings_schema", "views")
_DATA = ("workload/__init__.py", "workload/v6e.toml", "workload/**/configs/*.toml")
"""Data of the hosts' software: the catalog of chips, and the names of its configurations."""
_SUFFIXES = (".css", ".html", ".py", ".sh", ".toml", ".yaml")
_ENTRY = "infra/layers/pipeline/function"


def source(settings: Settings, root: Path = ROOT) -> Path:
    """Return the function's source as a zip that is the same for the same files.

    Args:
        settings: of the environment, whose file is packed as it is.
        root: the project's folder.
    """
    path = Path(tempfile.mkdtemp(prefix="tpu-function.")) / "function.zip"
    files = {name: root / _ENTRY / name for name in ("main.py", "requirements.txt")}
    files |= {file.relative_to(root).as_posix(): file for file in _packed(settings, root)}
    with zipfile.ZipFile(path, "w") as packed:
        for name, file in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def _packed(settings: Settings, root: Path) -> Iterator[Path]:
    for package in _PACKAGES:
        yield from (file for file in (root / package).rglob("*") if file.suffix in _SUFFIXES)
    for pattern in _DATA:
        yield from root.glob(pattern)
    yield root / "Pulumi.yaml"
    yield path_of(settings.environment, root)

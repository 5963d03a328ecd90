"""Zip of the project's packages and an environment's settings, for programs that Google runs."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from infra.settings.schema import Settings
from infra.settings.sources import BESIDE, PROGRAM, ROOT, part, path_of

_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
PACKAGES = ("fleet", "google_facts", "infra", "settings_schema", "views")
"""What observes and recreates slices needs."""
_DATA = ("workload/__init__.py", "workload/v6e.toml", "workload/**/configs/*.toml")
"""Data of the hosts' software: the catalog of chips, and the names of its configurations."""
_SUFFIXES = (".css", ".html", ".json", ".lua", ".py", ".sh", ".toml", ".yaml")


def packed(
    settings: Settings, packages: Sequence[str], root: Path = ROOT, beside: Mapping[str, Path] | None = None
) -> Path:
    """Return a zip that is the same for the same files.

    Args:
        settings: of the environment, whose file is packed as it is.
        packages: of the project.
        root: folder of that file.
        beside: further files by their names in the zip.
    """
    path = Path(tempfile.mkdtemp(prefix="tpu-program.")) / "program.zip"
    environment = path_of(settings.environment, root)
    own = {file.relative_to(PROGRAM).as_posix(): file for file in _files(packages)}
    files = {**(beside or {}), **own, "Pulumi.yaml": part("Pulumi.yaml"), environment.name: environment}
    with zipfile.ZipFile(path, "w") as archive:
        for name, file in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def _files(packages: Sequence[str]) -> Iterator[Path]:
    for package in packages:
        files = (PROGRAM / package).rglob("*")
        yield from (file for file in files if file.suffix in _SUFFIXES and BESIDE not in file.parents)
    for pattern in _DATA:
        yield from PROGRAM.glob(pattern)

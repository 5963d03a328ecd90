"""Pulumi projects of the layers beside the environments' files, where the program is a wheel's.

A checkout has them: infra/layers/NAME/Pulumi.yaml, and the root's.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from infra.core.layer import PROJECTS, project_file
from infra.engine import registry
from infra.errors import InfraError
from infra.settings.sources import part

_MAIN = "__main__.py"


@cache
def write(root: Path) -> None:
    """Write the projects, once, which read their settings at `root`. Raises InfraError if they can't be."""
    folder = root / PROJECTS
    files = {".gitignore": "*\n", _MAIN: part(_MAIN).read_text("utf-8")}
    for layer in registry.layers():
        project = yaml.safe_load(project_file(layer.name).read_text("utf-8"))
        project |= {"main": "..", "stackConfigDir": "../.."}
        files[f"{layer.name}/Pulumi.yaml"] = yaml.safe_dump(project, sort_keys=False)
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_text("utf-8") != text:
                path.write_text(text, "utf-8")
    except OSError as error:
        raise InfraError(f"{folder} can't be written: {error.strerror}\n    fix: make it writable") from None

"""Metadata of the wheel: the project's own, with dependencies pinned as its lock has them."""

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PINNED = "infra"


class Metadata(MetadataHookInterface):
    """Metadata of the checkout around this folder."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what pyproject.toml leaves to the checkout."""
        root = Path(self.root).parent
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
        pins = dict(re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", (root / "requirements.txt").read_text("utf-8")))
        extras = project["optional-dependencies"]
        metadata |= {"version": project["version"], "requires-python": project["requires-python"]}
        needed = dict.fromkeys((*project["dependencies"], *extras[_PINNED]))
        metadata["dependencies"] = [f"{name}=={pins[name]}" for name in needed]
        metadata["optional-dependencies"] = {
            name: needs for name, needs in extras.items() if name not in (_PINNED, "rehearsal", "test")
        }

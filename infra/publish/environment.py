"""Settings of an environment that publishing reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.engine.settings import from_file
from infra.layers.storage.settings import StorageSettings
from infra.slices.settings import TpuSettings

__all__ = ["Target", "target_of"]


@dataclass(frozen=True)
class Target:
    """Destination and contents of a bundle: bucket, TensorFlow, the user's own code."""

    bucket: str
    tensorflow: bool
    code: str | None
    requirements: str | None
    runs: Mapping[str, str]  # by the path of the setting
    key: str = "tpu:code"  # what names the folder, for people
    typed: str | None = None  # as they typed it, where that isn't `code`
    hosts: Collection[str] = ()  # paths of the runs that no image starts

    @property
    def shown(self) -> str:
        """The folder's name, for people."""
        return self.typed or self.code or ""


def target_of(environment: str, root: Path) -> Target:
    """Read the settings of `environment`; they are checked as `pulumi up` checks them."""
    settings = from_file(environment, root)
    code, requirements = settings[TpuSettings].code, settings[TpuSettings].requirements
    if code and requirements is None and (root / code / "requirements.txt").exists():
        requirements = f"{code.rstrip('/')}/requirements.txt"
    started = {
        f"tpu:slices[{i}].run": item for i, item in enumerate(settings[TpuSettings].slices) if item.run
    }
    return Target(
        bucket=settings[StorageSettings].bucket_name,
        tensorflow=settings[TpuSettings].tensorflow,
        code=code and code.rstrip("/"),
        requirements=requirements,
        runs={path: item.run or "" for path, item in started.items()},
        hosts=[path for path, item in started.items() if not item.image],
    )

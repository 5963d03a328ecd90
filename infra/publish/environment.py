"""What publishing reads from an environment's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infra.settings import from_file

__all__ = ["Target", "target_of"]


@dataclass(frozen=True)
class Target:
    """Where a bundle goes, and whether it holds TensorFlow."""

    bucket: str
    tensorflow: bool


def target_of(environment: str, root: Path) -> Target:
    """Read the settings of `environment`; they are checked as `pulumi up` checks them."""
    settings = from_file(environment, root)
    return Target(bucket=settings.storage.bucket_name, tensorflow=settings.tpu.tensorflow)

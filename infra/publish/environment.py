"""What publishing reads from an environment's settings, and the one line that it writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from infra.publish.errors import PublishError
from infra.settings import from_file

__all__ = ["Target", "record_bundle", "target_of"]


@dataclass(frozen=True)
class Target:
    """Where a bundle goes, and whether it holds TensorFlow."""

    bucket: str
    tensorflow: bool


def target_of(environment: str, root: Path) -> Target:
    """Read the settings of `environment`; they are checked as `pulumi up` checks them."""
    settings = from_file(environment, root)
    return Target(bucket=settings.storage.bucket_name, tensorflow=settings.tpu.tensorflow)


def record_bundle(environment: str, root: Path, bundle_id: str) -> bool:
    """Write `tpu:bundle` into `Pulumi.<environment>.yaml`, every other byte as it was.

    Returns whether the file changed.
    """
    path = root / f"Pulumi.{environment}.yaml"
    before = path.read_text("utf-8")
    line = f"tpu:bundle: {bundle_id}"
    after, replaced = re.subn(r"(?m)^([ ]+)tpu:bundle:.*$", rf"\g<1>{line}", before, count=1)
    if not replaced:
        after, inserted = re.subn(r"(?m)^config:[^\n]*\n([ ]+)", rf"\g<0>{line}\n\g<1>", before, count=1)
        if not inserted:
            raise PublishError(f"{path.name} has no 'config:' with settings: add '  {line}' there by hand")
    if after == before:
        return False
    path.write_text(after, "utf-8")
    return True

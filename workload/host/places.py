"""Gives the workers of several slices that run one job their places in it (multislice).

A host knows its slice alone. What the job has to know beyond that, the barrier brings: who is
there, and where worker 0 of the first slice listens. On TPU the runtime (libtpu) connects the
slices over the datacenter network by itself, from the MEGASCALE variables, which JAX reads as well
(jax/_src/clusters/cloud_tpu_cluster.py).
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from workload.host.errors import MetadataError
from workload.host.metadata import Node

__all__ = ["environment", "installed"]

_UNIT = Path("/etc/systemd/system/tpu-job.service")


def installed(slices: tuple[str, ...]) -> str:
    """Return a digest of what this host would run: its unit, its bundle's environment, its slices.

    Hosts take a new job or bundle over at their next boot, not all at once. From what lies
    on the host, since the metadata may be newer.
    """
    unit = _UNIT.read_text() if _UNIT.exists() else ""
    facts = [unit, str(Path(sys.prefix).resolve()), *slices]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def environment(node: Node, coordinator: str) -> str:
    """Return the variables of `node`'s job, as a systemd EnvironmentFile; none where a slice is alone.

    `coordinator` is `ip:port` of worker 0 of the first slice, as that worker told the others.
    """
    if not node.slices:
        return ""
    if not (found := re.fullmatch(r"((?:\d{1,3}\.){3}\d{1,3}):(\d{1,5})", coordinator)):
        raise MetadataError(
            f"worker 0 of {node.slices[0]} says that it listens at {coordinator!r}: not ip:port"
        )
    place = node.place(found[1], int(found[2]))
    return "".join(f"{name}={value}\n" for name, value in place.variables().items())

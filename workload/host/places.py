"""Places of the workers of several slices in the job that they run together (multislice).

A host's metadata describes its own slice. The barrier adds the rest: the workers of the other slices,
and the address of worker 0 of the first slice. On TPU the runtime (libtpu) connects the slices over the
datacenter network by itself, from the MEGASCALE variables, which JAX reads as well
(jax/_src/clusters/cloud_tpu_cluster.py).
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from workload.host.errors import MetadataError
from workload.host.metadata import HostDescription

_UNIT = Path("/etc/systemd/system/tpu-job.service")
_CODE = Path("/var/lib/tpu/code.json")


def installed(slices: tuple[str, ...]) -> str:
    """Return a digest of the installed job: its unit, its packages, its code, its slices.

    Hosts take over a new job or bundle one by one. Computed from the files on the host, since the metadata
    may be newer.
    """
    unit = _UNIT.read_text() if _UNIT.exists() else ""
    code = _CODE.read_text() if _CODE.exists() else "{}"  # as where code was taken away
    facts = [unit, str(Path(sys.prefix).resolve()), code, *slices]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def environment(node: HostDescription, coordinator: str) -> str:
    """Return the variables of `node`'s job, as a systemd EnvironmentFile; empty for a slice alone.

    `coordinator` is `ip:port` of worker 0 of the first slice, as that worker published it.
    """
    if not node.slices:
        return ""
    if not (match := re.fullmatch(r"((?:\d{1,3}\.){3}\d{1,3}):(\d{1,5})", coordinator)):
        raise MetadataError(
            f"worker 0 of {node.slices[0]} published the address {coordinator!r}: must be ip:port"
        )
    place = node.place(match[1], int(match[2]))
    return "".join(f"{name}={value}\n" for name, value in place.variables().items())

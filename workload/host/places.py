"""Gives the workers of several slices that run one job their places in it (multislice).

A host knows its slice alone. What the job has to know beyond that, the barrier brings: who is
there, and where worker 0 of the first slice listens. On TPU the runtime (libtpu) connects the
slices over the datacenter network by itself, from the three MEGASCALE variables that GKE sets
as well (cloud.google.com/tpu/docs/multislice-introduction).
"""

from __future__ import annotations

import re

from workload.host.errors import MetadataError
from workload.host.metadata import Node

__all__ = ["environment"]

_MEGASCALE_PORT = 8080  # the firewall opens it between slices


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
    meeting = node.meeting("job")
    variables = {
        "WORKER_ID": meeting.worker,
        "WORKER_COUNT": meeting.workers,
        "SLICE_ID": node.slice_id,
        "SLICE_COUNT": len(node.slices),
        "COORDINATOR_ADDRESS": coordinator,
        "MEGASCALE_COORDINATOR_ADDRESS": f"{found[1]}:{_MEGASCALE_PORT}",
        "MEGASCALE_NUM_SLICES": len(node.slices),
        "MEGASCALE_SLICE_ID": node.slice_id,
    }
    return "".join(f"{name}={value}\n" for name, value in variables.items())

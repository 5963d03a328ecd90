"""Compute Engine, as far as networks, disks and snapshots for TPU slices need it."""

from rehearsal.cloud.compute.service import ComputeService

__all__ = ["ComputeService"]

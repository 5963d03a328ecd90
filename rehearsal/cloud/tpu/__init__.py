"""The Cloud TPU API and the life of its nodes."""

from rehearsal.cloud.tpu.service import TpuService

__all__ = ["TpuService"]

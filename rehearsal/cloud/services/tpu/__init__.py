"""The Cloud TPU API and the life of its nodes."""

from rehearsal.cloud.services.tpu.service import TpuService

__all__ = ["TpuService"]

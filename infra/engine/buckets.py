"""Buckets that the layers of an environment declare."""

from __future__ import annotations

from infra.layers.pipeline.names import scratch_bucket
from infra.layers.storage.names import controller_bucket, steps_bucket
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings


def buckets(settings: Settings) -> list[str]:
    """Every bucket that the environment works with."""
    from infra.layers.gke.settings import GkeSettings
    from infra.layers.pipeline.settings import PipelineSettings

    storage, gke = settings[StorageSettings], settings.get(GkeSettings)
    pipeline = settings.get(PipelineSettings)
    found = [storage.bucket_name, steps_bucket(settings), controller_bucket(settings)]
    found += [storage.state_bucket_name] if storage.state_bucket_name else []
    found += [pipeline.raw_bucket_name, scratch_bucket(settings)] if pipeline else []
    found += [gke.artifact_bucket] if gke and gke.artifact_bucket else []
    return found

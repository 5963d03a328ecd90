"""Names and ids that the pipeline layer owns and other layers read."""

from __future__ import annotations

from infra.core.names import NAME_LENGTH
from infra.settings.schema import Settings


def scratch_bucket(settings: Settings) -> str:
    """Return the name of the bucket with the pipeline's code and Spark's temporary files."""
    from infra.layers.pipeline.settings import PipelineSettings  # its package imports this module

    desired = settings[PipelineSettings]
    raw = desired.raw_bucket_name.replace(".", "-")  # of a domain
    return desired.scratch_bucket_name or f"{raw}-scratch"[:NAME_LENGTH].rstrip("-_")

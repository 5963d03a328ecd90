"""Checks of what machines and hosts install, by the tpu layer's code."""

from __future__ import annotations

import pulumi

from infra.layers.slurm.settings import SlurmSettings
from infra.layers.slurm.startup import BUNDLE
from infra.layers.tpu import bundle
from infra.settings.schema import Settings
from infra.slices.settings import TpuSettings


def require_bundles(settings: Settings, bucket: str | None, provider: pulumi.ProviderResource) -> None:
    """Refuse an update whose hosts or machines would have nothing to install. Raises BundleError."""
    bundle.require(settings, [settings[TpuSettings].bundle], bucket, provider)
    bundle.require(settings, [settings[SlurmSettings].bundle], bucket, provider, BUNDLE.key)

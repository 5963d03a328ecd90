"""The artifact bucket: what jobs leave beside checkpoints."""

import pulumi
import pulumi_gcp as gcp

from infra.layers.gke import pools
from infra.layers.gke.settings import GkeSettings
from infra.settings.schema import Settings


class ArtifactBucket(pulumi.ComponentResource):
    """A private bucket, which the stack's end leaves as it is unless `gke:forceDestroy` gives it up."""

    bucket: gcp.storage.Bucket

    def __init__(self, settings: Settings, name: str, opts: pulumi.ResourceOptions | None = None):
        super().__init__("tpu:gke:ArtifactBucket", name, None, opts)
        given_up = settings[GkeSettings].force_destroy
        self.bucket = gcp.storage.Bucket(
            name,
            name=name,
            location=pools.region(settings),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            force_destroy=given_up,
            lifecycle_rules=[{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}],
            opts=pulumi.ResourceOptions(parent=self, protect=not given_up, retain_on_delete=not given_up),
        )
        self.register_outputs({})

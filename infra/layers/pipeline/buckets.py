"""The raw bucket, which outlives everything, and the scratch bucket, which nothing is lost with."""

import pulumi
import pulumi_gcp as gcp

from infra.errors import Problem, SettingsError
from infra.layers.pipeline import paths
from infra.layers.pipeline.names import scratch_bucket
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings

_UNFINISHED: gcp.storage.BucketLifecycleRuleArgsDict = {
    "action": {"type": "AbortIncompleteMultipartUpload"},
    "condition": {"age": 7},
}
_SOFT_DELETE_S = 7 * 86400
_RAW = "pipeline:rawBucketName"


class RawBucket(pulumi.ComponentResource):
    """A private bucket of text, whose objects come back for a week after they were removed."""

    bucket: gcp.storage.Bucket

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions):
        desired = settings[PipelineSettings]
        name = desired.raw_bucket_name
        super().__init__("tpu:pipeline:RawBucket", name, None, opts)
        colder: gcp.storage.BucketLifecycleRuleArgsDict = {
            "action": {"type": "SetStorageClass", "storage_class": "NEARLINE"},
            "condition": {"age": desired.raw_nearline_days},
        }
        self.bucket = gcp.storage.Bucket(
            name,
            name=name,
            location=paths.region(settings).upper(),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            force_destroy=False,
            versioning={"enabled": False},
            soft_delete_policy={"retention_duration_seconds": _SOFT_DELETE_S},
            lifecycle_rules=[_UNFINISHED, *([colder] if desired.raw_nearline_days else [])],
            opts=pulumi.ResourceOptions(parent=self, protect=True, retain_on_delete=True),
        )
        self.register_outputs({})


def require_raw_bucket(settings: Settings, provider: pulumi.ProviderResource) -> None:
    """Refuse somebody else's raw bucket that isn't there, or is in another region: each byte would be billed.

    Raises SettingsError.
    """
    name, region = settings[PipelineSettings].raw_bucket_name, paths.region(settings)
    rule = f"with existingRawBucket it is there, and in {region}, beside Spark and the checkpoint bucket"
    try:
        # With a project of its own, since without one the provider asks Compute Engine for the bucket's.
        bucket = gcp.storage.get_bucket(
            name=name, project=settings.project, opts=pulumi.InvokeOptions(provider=provider)
        )
    except Exception as error:  # the engine raises no narrower type
        problem = Problem(_RAW, f"{name}, which can't be looked up: {error}", rule,
                          "name one that is there, and that you may get (storage.buckets.get)")  # fmt: skip
        raise SettingsError(f"Pulumi.{settings.environment}.yaml", [problem]) from error
    if bucket.location.lower() != region:
        problem = Problem(_RAW, f"{name}, which is in {bucket.location.lower()}", rule,
                          f"copy the text to a bucket in {region}, and name that")  # fmt: skip
        raise SettingsError(f"Pulumi.{settings.environment}.yaml", [problem])


class ScratchBucket(pulumi.ComponentResource):
    """Code and what Spark leaves: without soft delete, which would bill for a week what lived for an hour."""

    bucket: gcp.storage.Bucket

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions):
        name = scratch_bucket(settings)
        super().__init__("tpu:pipeline:ScratchBucket", name, None, opts)
        self.bucket = gcp.storage.Bucket(
            name,
            name=name,
            location=paths.region(settings).upper(),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            force_destroy=True,
            versioning={"enabled": False},
            soft_delete_policy={"retention_duration_seconds": 0},
            lifecycle_rules=[
                _UNFINISHED,
                {
                    "action": {"type": "Delete"},
                    # Not the code: an old run may be tried again with it.
                    "condition": {
                        "age": settings[PipelineSettings].scratch_days,
                        "matches_prefixes": ["google-cloud-dataproc-metainfo/", "tmp/"],
                    },
                },
            ],
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})

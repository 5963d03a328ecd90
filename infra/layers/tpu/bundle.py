"""Check that slices' bundles are in the bucket (infra/layers/tpu/published.py)."""

import re
from collections.abc import Collection

import pulumi
import pulumi_gcp as gcp

from infra.errors import BundleError
from infra.layers.tpu.published import OF_HOSTS, unpublished
from infra.settings.schema import Settings

# As words of their own: the object's name, which errors quote, is 64 hex digits and may hold a 404.
_MISSING = re.compile(r"\b(404|notFound)\b|No such object")


def require(
    settings: Settings,
    bundles: Collection[str | None],
    bucket: str | None,
    provider: pulumi.ProviderResource,
    key: str = OF_HOSTS,
) -> None:
    """Refuse to continue without a published bundle in `bucket` (None: a preview before there is a bucket).

    A preview only warns: it shows the plan before anything exists.
    """
    missing = unpublished(
        settings, bundles, bucket or "", lambda name: bucket is None or _present(bucket, name, provider), key
    )
    if missing is None:
        return
    problem = "\n    fix: ".join(missing)
    if not pulumi.runtime.is_dry_run():
        raise BundleError(problem)
    pulumi.log.warn(problem)


def _present(bucket: str, name: str, provider: pulumi.ProviderResource) -> bool:
    """Return whether an object exists. Raises BundleError if that can't be found out."""
    try:
        object_ = gcp.storage.get_bucket_object(
            bucket=bucket, name=name, opts=pulumi.InvokeOptions(provider=provider)
        )
    except Exception as error:  # the engine raises no narrower type
        output = str(error)
        if _MISSING.search(output):
            return False
        raise BundleError(f"gs://{bucket}/{name} can't be looked up: {output}") from error
    return bool(object_.self_link)

"""A slice whose bundle isn't in the bucket would boot, fail on every host, and be billed."""

import re

import pulumi
import pulumi_gcp as gcp

from infra import names
from infra.errors import BundleError
from infra.settings import Settings

# As words of their own: the object's name, which errors quote, is 64 hex digits and may hold a 404.
_MISSING = re.compile(r"\b(404|notFound)\b|No such object")


def require(settings: Settings, bucket: str | None, provider: gcp.Provider) -> None:
    """Refuse to go on without a published bundle in `bucket` (None: a preview before there is one).

    A preview only says what is missing: it shows the plan before anything exists.
    """
    publish = f"publish it: make publish ENV={settings.environment}"
    problem = None
    if settings.tpu.bundle is None:
        problem = f"tpu:bundle: no bundle was published for the hosts to install; {publish}"
    elif bucket is not None and not _present(bucket, settings.tpu.bundle, provider):
        manifest = names.bundle_manifest(settings.tpu.bundle)
        problem = f"tpu:bundle: gs://{bucket}/{manifest} does not exist; {publish}"
    if problem is None:
        return
    if not pulumi.runtime.is_dry_run():
        raise BundleError(problem)
    pulumi.log.warn(problem)


def _present(bucket: str, bundle: str, provider: gcp.Provider) -> bool:
    """Whether the manifest is there. What can't be found out is an error, not a no."""
    manifest = names.bundle_manifest(bundle)
    try:
        found = gcp.storage.get_bucket_object(
            bucket=bucket, name=manifest, opts=pulumi.InvokeOptions(provider=provider)
        )
    except Exception as error:  # the engine raises no narrower type
        said = str(error)
        if _MISSING.search(said):
            return False
        raise BundleError(f"gs://{bucket}/{manifest} can't be looked up: {said}") from error
    return bool(found.self_link)

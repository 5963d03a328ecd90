"""A slice whose bundle isn't in the bucket would boot, fail on every host, and be billed."""

import re

import pulumi
import pulumi_gcp as gcp

from infra import names
from infra.errors import BundleError
from infra.settings import Settings
from infra.tpu import startup

# As words of their own: the object's name, which errors quote, is 64 hex digits and may hold a 404.
_MISSING = re.compile(r"\b(404|notFound)\b|No such object")


def require(settings: Settings, bucket: str | None, provider: gcp.Provider) -> None:
    """Refuse to go on without a published bundle in `bucket` (None: a preview before there is one).

    And without this checkout's start-up script, which is published with a bundle: who changed the script, or
    took over a change, would otherwise believe that hosts run it. An older bundle, with a script of its own,
    can be gone back to. A preview only says what is missing: it shows the plan before anything exists.
    """
    publish = f"publish it: make publish ENV={settings.environment}"
    problem = None
    if settings.tpu.bundle is None:
        problem = f"tpu:bundle: no bundle was published for the hosts to install; {publish}"
    elif bucket is not None:
        manifest = names.bundle_manifest(settings.tpu.bundle)
        script = names.bundle_blob(startup.script_sha256())
        if not _present(bucket, manifest, provider):
            problem = f"tpu:bundle: gs://{bucket}/{manifest} does not exist; {publish}"
        elif not _present(bucket, script, provider):
            missing = f"this checkout's start-up script, gs://{bucket}/{script}, does not exist"
            problem = f"tpu:bundle: {missing}; {publish}"
    if problem is None:
        return
    if not pulumi.runtime.is_dry_run():
        raise BundleError(problem)
    pulumi.log.warn(problem)


def _present(bucket: str, name: str, provider: gcp.Provider) -> bool:
    """Whether an object is there. What can't be found out is an error, not a no."""
    try:
        found = gcp.storage.get_bucket_object(
            bucket=bucket, name=name, opts=pulumi.InvokeOptions(provider=provider)
        )
    except Exception as error:  # the engine raises no narrower type
        said = str(error)
        if _MISSING.search(said):
            return False
        raise BundleError(f"gs://{bucket}/{name} can't be looked up: {said}") from error
    return bool(found.self_link)

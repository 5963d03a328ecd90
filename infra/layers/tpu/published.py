"""Check of the bundle in the bucket: a slice without it boots, fails on every host, and is billed."""

from collections.abc import Callable, Collection

from infra.layers.tpu import startup
from infra.settings.schema import Settings
from infra.slices.names import bundle_blob, bundle_manifest


def unpublished(
    settings: Settings, bundles: Collection[str | None], bucket: str, is_there: Callable[[str], bool]
) -> tuple[str, str] | None:
    """Return a missing object of some bundles and the command that publishes it; None if none is missing.

    Objects are the bundles and this checkout's start-up script, which is published with a bundle: a changed
    script must not go unnoticed. An older bundle has its own script and can be used again. `is_there` returns
    whether `bucket` has an object.
    """
    fix = f"tpu publish {settings.environment}"
    if None in bundles:
        return "tpu:bundle: no bundle was published for the hosts to install", fix
    manifests = [("", bundle_manifest(bundle)) for bundle in sorted(filter(None, {*bundles}))]
    script = "this checkout's start-up script, ", bundle_blob(startup.script_sha256())
    for what, name in (*manifests, script):
        if not is_there(name):
            return f"tpu:bundle: {what}gs://{bucket}/{name} does not exist", fix
    return None

"""Whether the bundle is in the bucket: a slice without it boots, fails on every host, and is billed."""

from collections.abc import Callable, Collection

from infra.layers.tpu import startup
from infra.settings.schema import Settings
from infra.slices.names import bundle_blob, bundle_manifest


def unpublished(
    settings: Settings, bundles: Collection[str | None], bucket: str, is_there: Callable[[str], bool]
) -> tuple[str, str] | None:
    """What of some bundles isn't in the bucket, and the command that publishes it; None where all is there.

    The bundle, and this checkout's start-up script, which is published with one: who changed the script, or
    took over a change, would otherwise believe that hosts run it. An older bundle, with a script of its own,
    can be gone back to. `is_there` says whether `bucket` has an object.
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

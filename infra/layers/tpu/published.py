"""Check of the bundle in the bucket: a slice without it boots, fails on every host, and is billed."""

from collections.abc import Callable, Collection

from infra.layers.tpu import startup
from infra.settings.schema import Settings
from infra.slices.names import bundle_blob, bundle_manifest

OF_HOSTS = "tpu:bundle"


def unpublished(
    settings: Settings,
    bundles: Collection[str | None],
    bucket: str,
    is_there: Callable[[str], bool],
    key: str = OF_HOSTS,
) -> tuple[str, str] | None:
    """Return a missing object of some bundles and the command that publishes it; None if none is missing.

    Objects are the bundles and, of hosts, this checkout's start-up script, which is published with a bundle:
    a changed script must not go unnoticed. An older bundle has its own script and can be used again.

    Args:
        settings: of the environment.
        bundles: their ids.
        bucket: that holds them.
        is_there: returns whether it has an object.
        key: setting that names the bundles.
    """
    fix = f"tpu publish {settings.environment}"
    if None in bundles:
        return (
            f"{key}: no bundle was published for the {'hosts' if key == OF_HOSTS else 'machines'} to install",
            fix,
        )
    objects = [("", bundle_manifest(bundle)) for bundle in sorted(filter(None, {*bundles}))]
    if key == OF_HOSTS:
        objects.append(("this checkout's start-up script, ", bundle_blob(startup.script_sha256())))
    for what, name in objects:
        if not is_there(name):
            return f"{key}: {what}gs://{bucket}/{name} does not exist", fix
    return None

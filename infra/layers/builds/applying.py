"""The account of builds, for layers whose resources it makes."""

from infra.core import upstream
from infra.layers.builds import names
from infra.layers.builds.outputs import BuildsOutputs
from infra.layers.builds.settings import BuildsSettings
from infra.settings.schema import Settings


def applying_member(settings: Settings) -> str | None:
    """Return the account that Cloud Build applies as, as policies name it; None where no builds do.

    Raises UpstreamError in an update where builds isn't up: a grant to it would fail amid what is made.
    """
    if settings.get(BuildsSettings) is None:
        return None
    _ = upstream.read(BuildsOutputs, settings).account_email
    return f"serviceAccount:{names.email(settings)}"

"""Names and ids that the builds layer owns and other layers read."""

from __future__ import annotations

from infra.core.names import account_email
from infra.layers.builds.settings import BuildsSettings
from infra.settings.schema import Settings


def applying_member(settings: Settings) -> str | None:
    """Return the account that Cloud Build applies as, as policies name it; None where no builds do."""
    builds = settings.get(BuildsSettings)
    return f"serviceAccount:{account_email(settings, builds.apply_account_id)}" if builds else None

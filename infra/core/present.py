"""Secrets of the settings must be there before anybody is granted them."""

from __future__ import annotations

from collections.abc import Iterable

import pulumi

from infra.core.secrets import missing
from infra.errors import InfraError, listed
from infra.google.client import Client, RequestError
from infra.settings.schema import Settings
from infra.settings.variables import Secret


def require(settings: Settings, names: Iterable[str], path: str) -> None:
    """Refuse to continue without one of the secrets, which are those of a key; a preview only warns.

    Where the login may not look them up, or Secret Manager is off yet, the grants on them fail.
    """
    google = Client(settings.project, tries=1)
    secrets = [Secret("", name) for name in names]
    try:
        wrong = [problem for secret in secrets for problem in missing(google, settings, secret, path)]
    except RequestError:
        return
    if wrong and not pulumi.runtime.is_dry_run():
        raise InfraError(listed("the settings", wrong))
    for problem in wrong:
        pulumi.log.warn(str(problem))

"""Secrets of the settings must be there before anybody is granted them."""

from __future__ import annotations

import pulumi

from infra.errors import InfraError, listed
from infra.google.client import Client, RequestError
from infra.layers.storage.secrets import missing
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.settings.variables import Secret

_PATH = "storage:secrets"


def require(settings: Settings) -> None:
    """Refuse to continue without one of the secrets; a preview only warns.

    Where the login may not look them up, or Secret Manager is off yet, the grants on them fail.
    """
    google = Client(settings.project, tries=1)
    secrets = [Secret("", name) for name in settings[StorageSettings].secrets]
    try:
        wrong = [problem for secret in secrets for problem in missing(google, settings, secret, _PATH)]
    except RequestError:
        return
    if wrong and not pulumi.runtime.is_dry_run():
        raise InfraError(listed("the settings", wrong))
    for problem in wrong:
        pulumi.log.warn(str(problem))

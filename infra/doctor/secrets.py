"""Secrets that the settings let programs read."""

from __future__ import annotations

from collections.abc import Iterator

from infra.core.secrets import problems
from infra.doctor.finding import MISSING, OK, Finding
from infra.google.client import Client
from infra.layers.storage.names import hosts
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.settings.variables import Secret


def check(google: Client, settings: Settings, what: str) -> Iterator[Finding]:
    """Report the secrets that aren't there, or that the hosts' account may not read."""
    names = settings[StorageSettings].secrets
    wrong = list(problems(google, settings, [Secret("", name) for name in names], hosts(settings)))
    for problem in wrong:
        yield Finding(what, MISSING, f"{problem.value}: {problem.rule}", problem.fix)
    if not wrong:
        yield Finding(what, OK, f"hosts may read {', '.join(names)}")

"""Repositories of images that the settings let hosts pull from."""

from __future__ import annotations

from collections.abc import Iterator

from google_facts import registries
from infra.doctor.finding import MISSING, OK, Finding
from infra.google.client import Client
from infra.layers.storage.images import refused
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings


def check(google: Client, settings: Settings, what: str) -> Iterator[Finding]:
    """Report the repositories that aren't there, or that the hosts' account may not read."""
    names = settings[StorageSettings].repositories
    places = filter(None, map(registries.named, names))
    wrong = [problem for place in places for problem in refused(google, settings, place, what)]
    for problem in wrong:
        yield Finding(what, MISSING, f"{problem.value}: {problem.rule}", problem.fix)
    if not wrong:
        yield Finding(what, OK, f"hosts may pull from {', '.join(names)}")

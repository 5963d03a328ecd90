"""Secrets that the settings let programs read."""

from __future__ import annotations

from collections.abc import Iterator

from infra.core.secrets import UNSEEN, missing, problems
from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding
from infra.google.client import Client, RequestError
from infra.layers.queue import team
from infra.layers.storage.names import hosts
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.settings.variables import Secret


def check(google: Client, settings: Settings, what: str) -> Iterator[Finding]:
    """Report the secrets that aren't there, or that the hosts' account may not read."""
    names, teams = settings[StorageSettings].secrets, team.secret_names(settings)
    wrong = list(problems(google, settings, [Secret("", name) for name in names], hosts(settings)))
    known = []
    for name in teams:
        try:
            wrong += missing(google, settings, Secret("", name)) if name not in names else ()
            known.append(name)
        except RequestError as error:
            if error.failure.kind not in UNSEEN:
                raise
            yield Finding(what, OPTIONAL, f'"{name}" of a team can\'t be looked up', error.failure.fix)
    for problem in wrong:
        yield Finding(what, MISSING, f"{problem.value}: {problem.rule}", problem.fix)
    if not wrong:
        present = {"hosts may read": names, "of teams:": known}
        detail = "; ".join(f"{words} {', '.join(items)}" for words, items in present.items() if items)
        yield Finding(what, OK, detail)

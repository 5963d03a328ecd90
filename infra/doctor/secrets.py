"""Secrets that the settings let programs read."""

from __future__ import annotations

from collections.abc import Iterator

from infra.core.secrets import UNSEEN, missing, problems
from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding
from infra.errors import Problem
from infra.google.client import Client, RequestError
from infra.layers.queue import team
from infra.layers.storage.names import hosts
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.settings.variables import Secret


def check(google: Client, settings: Settings, what: str) -> Iterator[Finding]:
    """Report the secrets that aren't there, or that the hosts' account may not read."""
    names, teams = settings[StorageSettings].secrets, team.secret_names(settings)
    wrong: list[Problem] = []
    seen = []
    for name in dict.fromkeys((*names, *teams)):
        secret = Secret("", name)
        try:
            absent = missing(google, settings, secret)
        except RequestError as error:
            if error.failure.kind not in UNSEEN:
                raise
            whose = "" if name in names else " of a team"
            yield Finding(what, OPTIONAL, f'"{name}"{whose} can\'t be looked up', error.failure.fix)
            continue
        seen.append(name)
        wrong += absent or (problems(google, settings, [secret], hosts(settings)) if name in names else [])
    for problem in wrong:
        yield Finding(what, MISSING, f"{problem.value}: {problem.rule}", problem.fix)
    if seen and not wrong:
        present = {
            "hosts may read": [name for name in seen if name in names],
            "of teams:": [name for name in seen if name in teams],
        }
        detail = "; ".join(f"{words} {', '.join(items)}" for words, items in present.items() if items)
        yield Finding(what, OK, detail)

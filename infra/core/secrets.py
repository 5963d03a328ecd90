"""Secrets of programs: who reads them, and what keeps an account from it, by Secret Manager's API.

https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.core.layer import up_command
from infra.errors import Problem
from infra.google.failures import Kind
from infra.google.role import Role, holders
from infra.settings.schema import Settings
from infra.settings.variables import Secret

if TYPE_CHECKING:
    from infra.google.client import Client

ACCESSOR = "roles/secretmanager.secretAccessor"
"""Role of accounts that read a secret, granted on the secret."""
GRANTING = Role(
    "roles/secretmanager.admin", "grant access to the secrets of programs",
    ("secretmanager.secrets.get", "secretmanager.secrets.getIamPolicy",
     "secretmanager.secrets.setIamPolicy"),
    setting="storage:secrets",
)  # fmt: skip
"""Role of whoever brings up a layer that grants ACCESSOR on the secrets of programs."""
_READ_BY = (ACCESSOR, "roles/secretmanager.admin", "roles/owner")
UNSEEN = (Kind.PERMISSION, Kind.API_OFF)
"""Refusals by which a login doesn't learn whether a secret is there."""
_ABSENT = re.compile(r"Secret \[projects/[^/\]]+/secrets/([\w-]+)\] not found")


@dataclass(frozen=True)
class Reader:
    """An account that reads secrets.

    Attributes:
        member: as policies have it, or its end.
        granted: the secrets that the settings grant to it, each with the layer that does.
        key: where the settings take another one, and `layer` grants it.
    """

    member: str
    granted: Mapping[str, str]
    key: str = "storage:secrets"
    layer: str = "storage"


def problems(
    google: Client,
    settings: Settings,
    secrets: Sequence[Secret],
    reader: Reader,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[Problem]:
    """Yield what keeps an account from reading secrets.

    Args:
        google: asked as the login, which may see less than it needs: then the settings count.
        settings: of the environment.
        secrets: that a program needs.
        reader: the account.
        note: receives the versions that the login may not look up; the settings name no version.

    Raises:
        RequestError: Secret Manager doesn't answer.
    """
    from infra.google.client import RequestError  # here, so that no program waits for Google's libraries

    for secret in secrets:
        layer = reader.granted.get(secret.name)
        up = up_command(layer or reader.layer, settings.environment)
        fix = up if layer else f"{reader.key}: [{secret.name}], then {up}"
        try:
            yield from missing(google, settings, secret) or _refused(google, secret, reader, fix)
        except RequestError as error:
            if error.failure.kind not in UNSEEN:
                raise
            if not layer:
                rule = f"isn't in {reader.key}, and you may not look up who reads it, or if it is there"
                made = f"if it isn't there: {creation(settings.project, secret.name)}"
                yield Problem("--secret", f'"{secret.name}"', rule, f"{made}; then {fix}")
            elif secret.version != "latest":
                unseen = f"{secret.name}@{secret.version}: you may not look up if this version is there"
                note(f"{unseen}; without it the program fails on the slice, which is billed")


def missing(google: Client, settings: Settings, secret: Secret, path: str = "--secret") -> list[Problem]:
    """Return the problem of a secret that isn't there, or whose version has no value. Raises RequestError."""
    from infra.google.client import RequestError

    value, project = f'"{secret.name}"', settings.project
    try:
        state = str(google.json("GET", f"{_url(google, secret)}/versions/{secret.version}").get("state"))
    except RequestError as error:
        if error.failure.kind is not Kind.MISSING:
            raise
        if not google.exists(_url(google, secret)):
            return [Problem(path, value, f"{project} has no such secret", creation(project, secret.name))]
        added = (
            f"printf %s VALUE | gcloud secrets versions add {secret.name} --project={project} --data-file=-"
        )
        return [Problem(path, value, f"it has no version {secret.version}", f"{added}; or name another")]
    if state == "ENABLED":
        return []
    fix = f"gcloud secrets versions enable {secret.version} --secret={secret.name} --project={project}"
    return [Problem(path, value, f"its version {secret.version} is {state}", fix)]


def creation(project: str, name: str) -> str:
    """Return the command that creates a secret."""
    return f"printf %s VALUE | gcloud secrets create {name} --project={project} --data-file=-"


def absent(message: str) -> str:
    """Return the secret that an error of an update says isn't there; "" for other errors."""
    named = _ABSENT.search(message)
    return named[1] if named else ""


def _refused(google: Client, secret: Secret, reader: Reader, fix: str) -> Iterator[Problem]:
    """Yield the problem of a secret whose policy doesn't name the account. Raises RequestError."""
    policy = google.json("GET", f"{_url(google, secret)}:getIamPolicy")
    if any(member.endswith(reader.member) for member in holders(policy, _READ_BY)):
        return
    if secret.name not in reader.granted and not reader.member.startswith("/"):
        fix += (
            f"; or gcloud secrets add-iam-policy-binding {secret.name} --project={google.project} "
            f"--member={reader.member} --role={ACCESSOR}"
        )
    yield Problem("--secret", f'"{secret.name}"', f"must be readable by {reader.member}, and isn't", fix)


def _url(google: Client, secret: Secret) -> str:
    return f"https://secretmanager.googleapis.com/v1/projects/{google.project}/secrets/{secret.name}"

"""Images of slices: what keeps hosts from one, by Artifact Registry's API.

https://cloud.google.com/artifact-registry/docs/reference/rest/v1/projects.locations.repositories
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from google_facts import registries
from infra.core.layer import up_command
from infra.errors import Problem
from infra.google import repositories
from infra.google.client import Client, RequestError
from infra.google.failures import Kind
from infra.google.role import BASIC, holders
from infra.layers.storage.names import hosts
from infra.layers.storage.settings import StorageSettings
from infra.settings.images import undeclared
from infra.settings.schema import Settings

_READ_BY = (
    *(f"roles/artifactregistry.{name}" for name in ("reader", "writer", "repoAdmin", "admin")),
    *BASIC,
)


def problems(google: Client, settings: Settings, image: str, path: str) -> Iterator[Problem]:
    """Yield what keeps hosts from an image: it isn't there, or its repository's policy refuses them.

    Where the login may not look it up, the settings count. Raises RequestError: the API doesn't answer.
    """
    place = registries.repository(image)
    if place is None:
        return
    name = image.partition("@")[0].removeprefix(f"{place.host_path}/").partition(":")[0]
    digest = image.partition("@")[2]
    try:
        google.json("GET", f"{repositories.API}/{place.full_name}/dockerImages/{quote(name, '')}@{digest}")
    except RequestError as error:
        if error.failure.kind is Kind.MISSING:
            fix = (
                f"push it; gcloud artifacts docker images list {place.host_path} prints those that are there"
            )
            yield Problem(path, f'"{image}"', "Artifact Registry has no such image", fix)
            return
        if error.failure.kind not in repositories.UNKNOWN:
            raise
    yield from refused(google, settings, place, path)


def refused(google: Client, settings: Settings, place: registries.Repository, path: str) -> Iterator[Problem]:
    """Yield the problem of a repository that isn't there, or whose policy doesn't name the hosts' account.

    A role on its project counts, too, but isn't looked up. Raises RequestError: the API doesn't answer.
    """
    member, value = hosts(settings).member, f'"{place.host_path}"'
    try:
        policy = google.json("GET", f"{repositories.API}/{place.full_name}:getIamPolicy")
    except RequestError as error:
        if error.failure.kind is Kind.MISSING:
            yield repositories.none_at(place, path)
        elif error.failure.kind in repositories.UNKNOWN:
            known, up = settings[StorageSettings].repositories, up_command("storage", settings.environment)
            yield from undeclared(path, f"{place.host_path}/…", settings.project, known, up)
        else:
            raise
        return
    if holders(policy, _READ_BY).isdisjoint({member, "allUsers", "allAuthenticatedUsers"}):
        rule = f"must be readable by {member}, and isn't"
        yield Problem(path, value, rule, _declared(settings, place))


def _declared(settings: Settings, place: registries.Repository) -> str:
    """Return the fix that lets hosts pull from a repository."""
    if place.project == settings.project:
        up = up_command("storage", settings.environment)
        known = place.host_path in settings[StorageSettings].repositories
        return up if known else f"add {place.host_path} to storage:repositories, then {up}"
    return (
        f"gcloud artifacts repositories add-iam-policy-binding {place.name} --location={place.location} "
        f"--project={place.project} --role={registries.READER} "
        f"--member={hosts(settings).member}"
    )

"""Repositories of images, by Artifact Registry's API.

https://cloud.google.com/artifact-registry/docs/reference/rest/v1/projects.locations.repositories
"""

from collections.abc import Iterator

from google_facts import registries
from infra.errors import Problem
from infra.google.client import Client, RequestError
from infra.google.failures import Kind

API = "https://artifactregistry.googleapis.com/v1"
UNKNOWN = (Kind.PERMISSION, Kind.API_OFF)
"""Failures that leave open if there is one."""


def absent(google: Client, image: str, path: str) -> Iterator[Problem]:
    """Yield the problem of an image whose repository isn't there; none where the login may not look it up.

    Raises RequestError: the API doesn't answer.
    """
    if (place := registries.repository(image)) is None:
        return
    try:
        google.json("GET", f"{API}/{place.full_name}")
    except RequestError as error:
        if error.failure.kind is Kind.MISSING:
            yield none_at(place, path)
        elif error.failure.kind not in UNKNOWN:
            raise


def none_at(place: registries.Repository, path: str) -> Problem:
    """Return the problem of a repository that isn't there, with the command that creates it."""
    where = f"--location={place.location} --project={place.project}"
    fix = f"gcloud artifacts repositories create {place.name} --repository-format=docker {where}"
    return Problem(path, f'"{place.host_path}"', "there is no such repository", fix)

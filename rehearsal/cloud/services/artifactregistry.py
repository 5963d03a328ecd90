"""Artifact Registry: repositories and their images, which are pushed by Docker's API (`registry.py`)."""

from rehearsal.cloud.collections import Change, Collection, Entry
from rehearsal.cloud.collections.checks import NAME
from rehearsal.cloud.core.errors import NotEmulatedError, bad_request


def _check(change: Change) -> None:
    """Refuse a remote repository without an upstream, or any other with it.

    https://cloud.google.com/artifact-registry/docs/repositories/remote-repo
    """
    remote = change.body.get("remoteRepositoryConfig")
    if (change.body["mode"] == "REMOTE_REPOSITORY") != bool(remote):
        raise bad_request("remote_repository_config is required for a remote repository, and for no other.")
    uri = ((remote or {}).get("commonRepository") or {}).get("uri", "")
    if remote and not uri:
        raise NotEmulatedError("A remote repository whose upstream isn't commonRepository.uri")
    if remote and not uri.startswith(("https://", "projects/")):
        raise bad_request(f'The upstream URI "{uri}" is invalid.')


_REPOSITORY = Collection(
    "artifactregistry.projects.locations.repositories",
    pattern=NAME,
    required=("format",),
    immutable=("format", "mode", "kmsKeyName", "remoteRepositoryConfig"),
    defaults={"mode": "STANDARD_REPOSITORY"},
    check=_check,
    seconds=5.0,
    not_found="Requested entity was not found.",
    exists="the repository already exists",
)

_IMAGE = Collection(
    "artifactregistry.projects.locations.repositories.dockerImages",
    permission="artifactregistry.dockerimages",
    not_found="Requested entity was not found.",
)

ENTRY = Entry(
    "artifactregistry",
    ("v1",),
    (_REPOSITORY, _IMAGE),
    package="google.devtools.artifactregistry.v1",
)

"""Artifact Registry: repositories, without what is in them."""

from rehearsal.cloud.collections import Collection, Entry
from rehearsal.cloud.collections.checks import NAME

_REPOSITORY = Collection(
    "artifactregistry.projects.locations.repositories",
    pattern=NAME,
    required=("format",),
    immutable=("format", "mode", "kmsKeyName"),
    defaults={"mode": "STANDARD_REPOSITORY"},
    seconds=5.0,
    not_found="Requested entity was not found.",
    exists="the repository already exists",
)

ENTRY = Entry(
    "artifactregistry",
    ("v1",),
    (_REPOSITORY,),
    package="google.devtools.artifactregistry.v1",
)

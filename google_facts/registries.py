"""Names of container images, and the registries that they are in: `registries.toml`."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

from google_facts import table

_FACTS = table("registries")
_GCR: Mapping[str, str] = _FACTS["gcr"]["locations"]
_PKG_DEV = "-docker.pkg.dev"
KUBERNETES: str = _FACTS["kubernetes"]["host"]
"""Registry of Kubernetes' own projects."""
CACHE: str = _FACTS["private_google_access"]["cached"][0]
"""Google's cache of Docker Hub's public images."""
READER: str = _FACTS["artifact_registry"]["reader"]
"""Role that pulls images from a repository."""
PULL: str = _FACTS["artifact_registry"]["permission"]
"""Permission that pulls images from a repository."""


@dataclass(frozen=True)
class Repository:
    """A repository of Artifact Registry."""

    project: str
    location: str
    name: str

    @property
    def full_name(self) -> str:
        """`projects/P/locations/L/repositories/R`."""
        return f"projects/{self.project}/locations/{self.location}/repositories/{self.name}"

    @property
    def host_path(self) -> str:
        """Return what names of its images begin with: `LOCATION-docker.pkg.dev/PROJECT/REPOSITORY`."""
        return f"{self.location}{_PKG_DEV}/{self.project}/{self.name}"


def host(image: str) -> str:
    """Return the host in an image's name; `docker.io` where there is none."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first) else "docker.io"


def is_googles(image: str) -> bool:
    """Return True for an image that nodes reach by Private Google Access."""
    return any(fnmatch.fnmatchcase(host(image), known) for known in _FACTS["private_google_access"]["hosts"])


def is_public(image: str) -> bool:
    """Return True for an image of Google's cache of Docker Hub, which asks for no role."""
    return host(image) in _FACTS["private_google_access"]["cached"]


def repository(image: str) -> Repository | None:
    """Return the repository of Artifact Registry that an image is in; None for other registries."""
    parts = image.partition("@")[0].split("/")
    if parts[0] in _GCR and len(parts) > 2:
        return Repository(parts[1], _GCR[parts[0]], parts[0])
    if parts[0].endswith(_PKG_DEV) and len(parts) > 3:
        return Repository(parts[1], parts[0].removesuffix(_PKG_DEV), parts[2])
    return None


def named(host_path: str) -> Repository | None:
    """Return the repository of `LOCATION-docker.pkg.dev/PROJECT/REPOSITORY`; None for other texts."""
    return repository(f"{host_path}/image")


def released(project: str, tag: str) -> str:
    """Return the image of a release of `kueue` or `jobset`, with its digest."""
    known = _FACTS[project]
    return f"{KUBERNETES}/{known['path']}:{tag}@{known['digests'][tag]}"


def released_digests(path: str) -> frozenset[str]:
    """Return the digests of a path at KUBERNETES that are known; none for other paths."""
    return frozenset(
        digest
        for block in _FACTS.values()
        if block.get("path") == path
        for digest in block["digests"].values()
    )

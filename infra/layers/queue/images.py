"""Images that pods pull: what nodes reach without Cloud NAT, and may read.

https://cloud.google.com/artifact-registry/docs/repositories/remote-overview
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google_facts import registries
from google_facts.registries import Repository
from infra.core import names
from infra.layers.gke import pools
from infra.layers.gke.settings import GkeSettings
from infra.layers.queue.settings import QueueSettings
from infra.settings.schema import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from infra.errors import Problem
    from infra.google.client import Client


def mirror(settings: Settings) -> Repository:
    """Return the remote repository in front of the registry of Kubernetes' projects."""
    name = names.fitted(f"{settings[GkeSettings].cluster_name}-registry-k8s-io")
    return Repository(settings.project, pools.region(settings), name)


def is_mirrored(image: str) -> bool:
    """Return True for an image that nodes pull by the remote repository."""
    return registries.host(image) == registries.KUBERNETES


def pulled(settings: Settings, image: str) -> str:
    """Return the name by which nodes pull an image of a controller: the same bytes, by its digest."""
    path = image.partition("/")[2]
    return f"{mirror(settings).host_path}/{path}" if is_mirrored(image) else image


def readable(settings: Settings) -> Sequence[Repository]:
    """Return the project's repositories that nodes pull from."""
    desired = settings[QueueSettings]
    controllers = (pulled(settings, image) for image in (desired.jobset_image, desired.kueue_image))
    places = (registries.repository(image) for image in (*controllers, desired.image or ""))
    return tuple(dict.fromkeys(place for place in places if place and place.project == settings.project))


def lacking(settings: Settings, google: Client) -> Iterator[Problem]:
    """Yield the repositories of pods' images that aren't there: grants on them come after the pools."""
    from infra.google.repositories import absent  # here, so that no program waits for Google's libraries

    desired = settings[QueueSettings]
    images = {"image": desired.image, "kueueImage": desired.kueue_image, "jobsetImage": desired.jobset_image}
    for key, image in images.items():
        yield from absent(google, image or "", f"queue:{key}")
